package outbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// fixedTrace is a context's trace in these tests.
type fixedTrace struct{}

func (fixedTrace) Trace(ctx context.Context) (parent, state string) {
	parent, _ = ctx.Value(fixedTrace{}).(string)
	return parent, "s=1"
}

func traceOf(ctx context.Context, parent string) context.Context {
	return context.WithValue(ctx, fixedTrace{}, parent)
}

// Messages get the trace of who writes them, on every way into the outbox, and
// the caller's own values stay untouched.
func TestTheWriterAddsItsTrace(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	w, err := NewWriter(&WriterOptions{Schema: schema, Tracer: fixedTrace{}})
	if err != nil {
		t.Fatal(err)
	}
	in := func(id string, headers map[string]string) Message {
		return Message{ID: "00000000-0000-7000-8000-00000000000" + id, Topic: "t", Scope: "s", Key: "k", Step: "p", Headers: headers}
	}
	own := map[string]string{"x": "1"}
	plain := []Message{in("1", nil), in("2", own), in("3", map[string]string{"traceparent": "mine"})}
	delayed := in("4", nil)
	delayed.Delay = time.Hour
	write := func(ctx context.Context, tx pgx.Tx) error {
		if err := w.Write(ctx, tx, plain...); err != nil {
			return err
		}
		if err := w.Write(ctx, tx, delayed); err != nil {
			return err
		}
		batch := &pgx.Batch{}
		if err := w.Queue(ctx, batch, in("5", nil)); err != nil {
			return err
		}
		if err := w.Queue(t.Context(), batch, in("6", nil)); err != nil { // of no trace
			return err
		}
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return w.Write(t.Context(), tx, in("7", nil)) // of no trace
	}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return write(traceOf(t.Context(), "p"), tx) }); err != nil {
		t.Fatal(err)
	}
	rows, _ := pool.Query(t.Context(), "SELECT right(message_id::text, 1), coalesce(headers::text, '') FROM "+schema+".outbox UNION ALL "+
		"SELECT right(message_id::text, 1), coalesce(headers::text, '') FROM "+schema+".outbox_held")
	got := map[string]string{}
	var id, headers string
	if _, err := pgx.ForEachRow(rows, []any{&id, &headers}, func() error { got[id] = headers; return nil }); err != nil {
		t.Fatal(err)
	}
	const traced = `{"traceparent":"p","tracestate":"s=1"}`
	want := map[string]string{
		"1": traced, "2": `{"traceparent":"p","tracestate":"s=1","x":"1"}`, "3": `{"traceparent":"mine"}`,
		"4": traced, "5": traced, "6": "", "7": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stored headers (-want +got):\n%s", diff)
	}
	if len(own) != 1 || plain[0].Headers != nil {
		t.Errorf("the caller's messages are changed: %v, %v", own, plain[0].Headers)
	}
}

// calls keeps what a relay tells.
type calls struct {
	mu  sync.Mutex
	all []Call
}

func (c *calls) Published(_ context.Context, call Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, call)
}

// answering is a publisher with an answer for each topic.
type answering map[string]error

func (a answering) PublishBatch(_ context.Context, batch []Publication) []error {
	results := make([]error, len(batch))
	for i, p := range batch {
		results[i] = a[p.Topic]
	}
	return results
}

// The relay tells of each message that has a trace, with its answer, and of no
// other.
func TestTheRelayTellsOfTracedMessages(t *testing.T) {
	t.Parallel()
	pool, _ := pgtest.Schema(t)
	lost := errors.New("lost")
	observer := &calls{}
	r, err := NewRelay(pool, answering{"refused": ErrRefused, "lost": lost}, &RelayOptions{Observer: observer, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	wave := func(topics ...string) (items []*item) {
		for _, topic := range topics {
			m := &item{row: row{Topic: topic, Type: "type", Scope: "s", Key: "k", Step: "p", CorrelationID: "c", Payload: []byte("four")}}
			switch topic {
			case "untraced":
			case "broken":
				m.Headers = []byte("{")
			default:
				m.Headers = []byte(`{"traceparent":"p-` + topic + `","tracestate":"s"}`)
			}
			m.Attempts = len(topic) - len("refused")
			items = append(items, m)
		}
		return items
	}
	before := time.Now()
	sender{&r.core}.publishWave(t.Context(), wave("untraced"))
	sender{&r.core}.publishWave(t.Context(), wave("broken", "untraced", "fine", "refused", "lost"))
	traced := func(topic string, attempt int, err error) TracedMessage {
		return TracedMessage{Topic: topic, Type: "type", Step: "p", CorrelationID: "c", TraceParent: "p-" + topic, TraceState: "s", Bytes: 4, Attempt: attempt, Err: err}
	}
	want := []Call{{Messages: 4, Traced: []TracedMessage{traced("fine", -2, nil), traced("refused", 1, ErrRefused), traced("lost", -2, lost)}}}
	opts := []cmp.Option{cmpopts.IgnoreFields(Call{}, "Began", "Took"), cmpopts.IgnoreFields(TracedMessage{}, "ID"), cmpopts.EquateErrors()}
	if diff := cmp.Diff(want, observer.all, opts...); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	for _, c := range observer.all {
		if c.Began.Before(before) || c.Took < 0 || c.Took > time.Since(before) {
			t.Errorf("the call began at %s and took %s", c.Began, c.Took)
		}
		for _, m := range c.Traced {
			if m.ID == "" {
				t.Errorf("message to %s has no id", m.Topic)
			}
		}
	}
}

// What the observer costs a call of 512 messages, of which none, or every one,
// has a trace. Without an observer nothing is looked at.
func BenchmarkObserver(b *testing.B) {
	wave := make([]*item, laneBatch)
	headers := map[string][]byte{"untraced": nil, "traced": []byte(`{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`)}
	for name, h := range headers {
		for i := range wave {
			wave[i] = &item{row: row{Topic: "t", Scope: "s", Key: "k", Step: "p", Headers: h}}
		}
		for seam, observer := range map[string]PublishObserver{"unset": nil, "set": discard{}} {
			b.Run(name+"/"+seam, func(b *testing.B) {
				r := &Relay{core: core{pub: answering{}, opts: RelayOptions{Observer: observer, PublishTimeout: time.Minute}}}
				b.ReportAllocs()
				for b.Loop() {
					sender{&r.core}.publishWave(b.Context(), wave)
				}
			})
		}
	}
}

type discard struct{}

func (discard) Published(context.Context, Call) {}
