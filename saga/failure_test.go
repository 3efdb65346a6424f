package saga_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

const soon = time.Millisecond

// A participant that does not answer in time is undone: if it has not begun, its
// inbox says so, and the action that comes late is not done any more.
func TestADeadlineUndoesWhatMayHaveBeenDone(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	late := book("hotel")
	late.Deadline = 50 * time.Millisecond
	p.orchestrate(nil, saga.Must(saga.Define("trip", 1, book("flight"), late)))
	hotel := p.booking("hotel")
	hotel.RetryBase, hotel.MaxAttempts = soon, 3
	overdue := make(chan struct{})
	action := hotel.Action
	hotel.Action = saga.On("hotel.book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) (answer, error) {
		<-overdue
		return answer{"late"}, nil
	})
	hotel.Action.Topic, hotel.Single = action.Topic, true
	p.participate(p.booking("flight"), hotel)
	start(p, saga.Must(saga.Define("trip", 1, book("flight"), late)), "k", trip{Item: "x"})
	p.untilSQL("k", `progress LIKE '%no reply within 50ms%'`)
	close(overdue)
	reason := p.until("k", saga.StatusCompensated)
	if want := "step hotel: no reply within 50ms"; reason != want {
		t.Errorf("reason %q, want %q", reason, want)
	}
	if got := p.effects("k"); got != "[flight no hotel no flight]" { // it was done, and undone
		t.Errorf("effects %s", got)
	}
}

// With OnDeadLetter a dead letter compensates. The compensation is a dead letter too unless it may cancel what is parked:
// then the saga is stuck, and goes on when an operator has redriven both.
func TestADeadLetterThatCompensates(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		cancel bool
		want   saga.Status
		reason string
	}{
		"may cancel": {true, saga.StatusCompensated, "step hotel failed: dead letter, terminal: broken"},
		"may not":    {false, saga.StatusStuck, "compensation of step hotel: dead letter, action-dead"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			step := book("hotel")
			step.OnDeadLetter = saga.Undo
			d := saga.Must(saga.Define("trip", 1, book("flight"), step))
			p.orchestrate(nil, d)
			hotel := p.booking("hotel")
			var mended atomic.Bool
			hotel.Action = saga.On("hotel.book", func(context.Context, pgx.Tx, consumer.Message[request]) (answer, error) {
				if mended.Load() {
					return answer{"late"}, nil
				}
				return answer{}, consumer.Terminal(errors.New("broken"))
			})
			hotel.CancelParked = tt.cancel
			p.participate(p.booking("flight"), hotel)
			start(p, d, "k", trip{Item: "x"})
			if reason := p.until("k", tt.want); !strings.HasPrefix(reason, tt.reason) {
				t.Errorf("reason %q, want %q", reason, tt.reason)
			}
			if tt.want == saga.StatusCompensated {
				return
			}
			mended.Store(true)
			letters, err := operator.NewDeadLetters(p.db, operator.Inbox, &operator.Options{Schema: p.schema})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := letters.Redrive(t.Context(), operator.Filter{Step: "hotel"}, nil); err != nil {
				t.Fatal(err)
			}
			p.until("k", saga.StatusCompensated)
			if got := p.effects("k"); got != "[flight no hotel no flight]" {
				t.Errorf("effects %s", got)
			}
		})
	}
}

// A local step's errors are tried again by a timer, without a trace of the attempts
// that failed; so are those of a local compensation, and when the attempts are used
// up a person is asked.
func TestLocalStepsAreTriedAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var tries, undos atomic.Int32
	local := saga.Step[trip]{
		Name: "note",
		Do: saga.Local(func(ctx context.Context, tx pgx.Tx, turn saga.Turn, s *trip) error {
			s.Numbers = append(s.Numbers, "note")
			_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, 'note')", turn.Key)
			switch tries.Add(1) {
			case 1:
				panic("not yet")
			case 2:
				_, err = tx.Exec(ctx, "SELECT 1/0") // aborts what comes after it
			}
			return err
		}),
		Undo: saga.Local(func(ctx context.Context, tx pgx.Tx, turn saga.Turn, s *trip) error {
			if undos.Add(1) <= 3 {
				return errors.New("the note is lost")
			}
			_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, 'no note')", turn.Key)
			return err
		}),
		Retry: saga.Retry{Base: soon}, UndoRetry: saga.Retry{Attempts: 3, Base: soon},
	}
	d := saga.Must(saga.Define("trip", 1, local, book("car")))
	p.orchestrate(&saga.Options{TimerPoll: 5 * soon}, d)
	p.participate(p.booking("car"))
	start(p, d, "k", trip{Item: "no car"})
	if reason := p.until("k", saga.StatusStuck); !strings.HasPrefix(reason, "compensation of step note: the note is lost, after step car was rejected") {
		t.Errorf("reason %q", reason)
	}
	if tries.Load() != 3 || undos.Load() != 3 {
		t.Errorf("%d tries and %d undos, want 3 and 3", tries.Load(), undos.Load())
	}
	var state string
	if err := p.db.QueryRow(t.Context(), "SELECT state FROM "+p.schema+".saga").Scan(&state); err != nil || state != `{"item":"no car","numbers":["note"]}` {
		t.Errorf("state %s, %v: want one note in it", state, err)
	}
	if got := p.effects("k"); got != "[note]" {
		t.Errorf("effects %s, want one note", got)
	}
}

// untilSQL waits until the row of a key fulfils a condition.
func (p *place) untilSQL(key, condition string) {
	p.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); ; {
		var ok bool
		if err := p.db.QueryRow(p.t.Context(), "SELECT "+condition+" FROM "+p.schema+".saga WHERE key = $1 AND path = ''", key).Scan(&ok); err != nil {
			p.t.Fatal(err)
		}
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			p.t.Fatalf("%s is not so", condition)
		}
	}
}

// marked returns n as one of the instance of a key.
func (p *place) marked(key, n string) string {
	p.t.Helper()
	root := "00000000" // of nobody
	err := p.db.QueryRow(p.t.Context(), "SELECT root::text FROM "+p.schema+".saga WHERE key = $1 LIMIT 1", key).Scan(&root)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		p.t.Fatal(err)
	}
	if n == "" {
		return ""
	}
	return flow.Mark(root, n)
}

// publish stores a message as a participant of the instance of its key would.
func (p *place) publish(m outbox.Message) {
	p.t.Helper()
	m.N = p.marked(m.Key, m.N)
	p.publishAs(m)
}

func (p *place) publishAs(m outbox.Message) {
	p.t.Helper()
	w, err := outbox.NewWriter(&outbox.WriterOptions{Schema: p.schema})
	if err != nil {
		p.t.Fatal(err)
	}
	m.Scope = "tenant"
	err = pgx.BeginFunc(p.t.Context(), p.db, func(tx pgx.Tx) error { return w.Write(p.t.Context(), tx, m) })
	if err != nil {
		p.t.Fatal(err)
	}
	p.relay.Wake()
}

// What an orchestrator cannot use is a dead letter that says why, and the instance is
// as it was: the right reply finds it.
func TestBadRepliesAreDeadLettersAndLeaveTheInstanceUnharmed(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	o := p.orchestrate(nil, d)
	silent := p.broker.Subscriber("silent")
	for _, topic := range []string{"flight.book", "hotel.book"} {
		if err := silent.SubscribeInitialize(topic); err != nil {
			t.Fatal(err)
		}
		p.drain(silent, topic)
	}
	start(p, d, "k", trip{Item: "x"})
	good := func(n, number string) outbox.Message {
		body, _ := json.Marshal(map[string]any{"outcome": "done", "result": answer{number}})
		return outbox.Message{Key: "k", N: n, Payload: body}
	}
	send := func(m outbox.Message) {
		m.Topic, m.Type, m.Step = saga.Topic("trip"), saga.TypeReply, "test"
		p.publish(m)
	}
	letters, err := operator.NewDeadLetters(p.db, operator.Inbox, &operator.Options{Schema: p.schema})
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		m    outbox.Message
		want string
	}{
		{outbox.Message{Key: "nobody", N: "1.1.d", Payload: []byte(`{"outcome":"done"}`)}, "no such instance"},
		{outbox.Message{Key: "k", N: "", Payload: []byte(`{"outcome":"done"}`)}, "does not begin with the mark of an instance"},
		{outbox.Message{Key: "k", N: "1.1", Payload: []byte(`{"outcome":"done"}`)}, "is not that of a reply"},
		{outbox.Message{Key: "k", N: "0.1.d", Payload: []byte(`{"outcome":"done"}`)}, "does not name a step"},
		{outbox.Message{Key: "k", N: "9.1.d", Payload: []byte(`{"outcome":"done"}`)}, "there is no step 9"},
		{outbox.Message{Key: "k", N: "1.1.u", Payload: []byte(`{"outcome":"done"}`)}, "is not one of those for a compensation"},
		{outbox.Message{Key: "k", N: "1.1.dx", Payload: []byte(`{"outcome":"gone"}`)}, `outcome "gone" is not one`},
		{outbox.Message{Key: "k", N: "1.1.dy", Payload: []byte(`{"outcome":"done","result":{"number":7}}`)}, "result of step flight"},
		{outbox.Message{Key: "k", N: "1.1.dz", Payload: []byte(`{"outcome":"done"}`)}, "result of step flight"},
		{outbox.Message{Key: "k", N: "1.1.dq", Payload: []byte(`[1]`)}, "payload"},
	} {
		send(tt.m)
		letter := p.letter(letters, i+1)
		if !strings.Contains(letter.Error, tt.want) {
			t.Errorf("%s %s: dead letter %q, want it to say %s", tt.m.N, tt.m.Payload, letter.Error, tt.want)
		}
	}
	p.untilSQL("k", `status = 'running' AND revision = 0`)
	send(good("1.1.d", "LH1"))
	p.untilSQL("k", `state = '{"item":"x","numbers":["LH1"]}'`)
	send(good("1.1.d2", "again")) // nobody waits for it
	send(good("2.1.d", "Ritz"))
	p.until("k", saga.StatusCompleted)
	send(good("2.1.d3", "late"))
	p.untilSQL("k", `(SELECT count(*) FROM `+p.schema+`.inbox WHERE n LIKE '%-2.1.d3') = 1`)
	p.untilSQL("k", `state = '{"item":"x","numbers":["LH1","Ritz"]}' AND revision = 2`)
	if got := o.Counters(); got.Late != 2 || got.Completed != 1 {
		t.Errorf("counters %+v, want 2 late and 1 completed", got)
	}
}

// drain takes what comes to topic, and does nothing with it.
func (p *place) drain(sub interface {
	Subscribe(context.Context, string) (<-chan *message.Message, error)
}, topic string) {
	p.t.Helper()
	messages, err := sub.Subscribe(p.ctx, topic)
	if err != nil {
		p.t.Fatal(err)
	}
	p.wg.Go(func() {
		for m := range messages {
			m.Ack()
		}
	})
}

// letter waits for the nth dead letter.
func (p *place) letter(letters *operator.DeadLetters, n int) operator.DeadLetter {
	p.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); ; {
		all, err := letters.List(p.t.Context(), operator.Filter{}, 0, 100)
		if err != nil {
			p.t.Fatal(err)
		}
		if len(all) >= n {
			return all[n-1]
		}
		select {
		case <-tick.C:
		case <-timeout:
			p.t.Fatalf("%d dead letters, want %d", len(all), n)
		}
	}
}

// A participant says no, and the saga hears of it too late: nothing was done, and the
// compensation that is sent does nothing.
func TestARejectionThatComesLateIsNotUndone(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	late := book("hotel")
	late.Deadline = 50 * time.Millisecond
	d := saga.Must(saga.Define("trip", 1, book("flight"), late))
	p.orchestrate(nil, d)
	hotel := p.booking("hotel")
	overdue := make(chan struct{})
	hotel.Action = saga.On("hotel.book", func(context.Context, pgx.Tx, consumer.Message[request]) (answer, error) {
		<-overdue
		return answer{}, saga.Reject("there is none")
	})
	hotel.Single = true
	p.participate(p.booking("flight"), hotel)
	start(p, d, "k", trip{Item: "x"})
	p.untilSQL("k", `progress LIKE '%no reply within 50ms%'`)
	close(overdue)
	p.until("k", saga.StatusCompensated)
	if got := p.effects("k"); got != "[flight no flight]" {
		t.Errorf("effects %s: what was refused was undone", got)
	}
}
