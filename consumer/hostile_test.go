package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

type charge struct {
	Amount int64  `json:"amount"`
	Note   string `json:"note"`
}

// A hostile message differs in something from a good one. It becomes a dead
// letter with reason or, if that is "", it has one effect like any other.
type hostile struct {
	name   string
	change func(p *amqp.Publishing)
	reason consumer.Reason
}

func header(name string, value any) func(p *amqp.Publishing) {
	return func(p *amqp.Publishing) { p.Headers[name] = value }
}

func body(b string) func(p *amqp.Publishing) {
	return func(p *amqp.Publishing) { p.Body = []byte(b) }
}

// nasty are texts that have broken something somewhere.
var nasty = map[string]string{
	"NUL": "a\x00b:pay", "invalid UTF-8": "a\xff\xfeb:pay", "CR LF": "a\r\nlevel=INFO msg=forged:pay", "ANSI": "\x1b[2J\x1b[31m:pay",
	"DEL": "a\x7f:pay", "C1": "\u009b2J:pay", "bidi": "\u202e:pay", "no colon": "abc", "no step": "abc:", "no key": ":pay", "blank": "   ", "blank step": "k: ",
	"256 bytes": strings.Repeat("k", 256) + ":pay", "100 kB": strings.Repeat("k", 100_000) + ":pay", "two n": "k:pay#1#2",
}

// typed are values of types that a header is not expected to have.
var typed = map[string]any{
	"bytes": []byte{0xff, 0x00, ':'}, "int": int32(5), "long": int64(-5), "bool": true, "float": 1.5, "decimal": amqp.Decimal{Scale: 2, Value: 5},
	"array": []any{"k:pay"}, "table": amqp.Table{"k": "k:pay"}, "time": time.Unix(1, 0), "byte": int8(1),
}

func hostileKeys() (all []hostile) {
	all = []hostile{
		{"key missing", func(p *amqp.Publishing) { delete(p.Headers, outbox.HeaderKey) }, consumer.ReasonKeyMissing},
		{"key empty", header(outbox.HeaderKey, ""), consumer.ReasonKeyMissing},
		{"key nil", header(outbox.HeaderKey, nil), consumer.ReasonKeyMissing},
		{"no headers", func(p *amqp.Publishing) { p.Headers = amqp.Table{"x-case": p.Headers["x-case"]} }, consumer.ReasonKeyMissing},
		{"key of SQL", header(outbox.HeaderKey, "'; DROP TABLE inbox; --:pay"), ""},
		{"key of good bytes", header(outbox.HeaderKey, []byte("bytes:pay")), ""},
		{"scope missing", func(p *amqp.Publishing) { delete(p.Headers, outbox.HeaderScope) }, consumer.ReasonScopeMissing},
		{"scope nil", header(outbox.HeaderScope, nil), consumer.ReasonScopeMissing},
		{"scope of 256 bytes", header(outbox.HeaderScope, strings.Repeat("s", 256)), consumer.ReasonScopeMalformed},
		{"scope of SQL", header(outbox.HeaderScope, "'; DROP TABLE inbox; --"), ""},
	}
	for name, text := range nasty {
		reason := consumer.ReasonKeyMalformed
		all = append(all, hostile{"key " + name, header(outbox.HeaderKey, text), reason})
	}
	for name, value := range typed {
		all = append(all, hostile{"key " + name, header(outbox.HeaderKey, value), consumer.ReasonKeyMalformed})
	}
	for _, name := range []string{"NUL", "invalid UTF-8", "CR LF", "ANSI", "DEL"} {
		all = append(all, hostile{"scope " + name, header(outbox.HeaderScope, nasty[name]), consumer.ReasonScopeMalformed})
	}
	for _, name := range []string{"int", "long", "bool", "float", "array", "table", "time"} { // in string form they are scopes
		all = append(all, hostile{"scope " + name, header(outbox.HeaderScope, typed[name]), ""})
	}
	return all
}

func hostileProperties() (all []hostile) {
	all = []hostile{
		{"type missing", func(p *amqp.Publishing) { p.Type = "" }, consumer.ReasonTypeMissing},
		{"type unknown", func(p *amqp.Publishing) { p.Type = "pay.v2" }, consumer.ReasonTypeUnknown},
		{"type of another step", func(p *amqp.Publishing) { p.Type = "unpay" }, consumer.ReasonTypeUnknown},
		{"no message-id", func(p *amqp.Publishing) { p.MessageId = "" }, ""},
		{"no timestamp", func(p *amqp.Publishing) { p.Timestamp = time.Time{} }, ""},
		{"timestamp of 2^62", func(p *amqp.Publishing) { p.Timestamp = time.Unix(1<<62, 0) }, ""},
		{"timestamp before 1970", func(p *amqp.Publishing) { p.Timestamp = time.Unix(-1<<62, 0) }, ""},
		{"content-type text", func(p *amqp.Publishing) { p.ContentType = "text/xml" }, consumer.ReasonUndecodable},
		{"content-type malformed", func(p *amqp.Publishing) { p.ContentType = "\x1b[31m;;;=" }, consumer.ReasonUndecodable},
		{"content-type charset", func(p *amqp.Publishing) { p.ContentType = "application/json; charset=utf-16" }, consumer.ReasonUndecodable},
		{"content-encoding gzip", func(p *amqp.Publishing) { p.ContentEncoding = "gzip" }, consumer.ReasonUndecodable},
		{"content-encoding good", func(p *amqp.Publishing) { p.ContentEncoding = "UTF-8" }, ""},
		{"content-type good", func(p *amqp.Publishing) { p.ContentType = "Application/Order+JSON; charset=UTF-8" }, ""},
		{"content-type absent", func(p *amqp.Publishing) { p.ContentType = "" }, ""},
		{"many headers", func(p *amqp.Publishing) {
			for i := range 4000 {
				p.Headers[fmt.Sprint("x-", i)] = "value of a header"
			}
		}, ""},
		{"deep header", header("x-deep", deep(30)), ""},
	}
	for name, text := range nasty {
		text = text[:min(len(text), 255)]
		all = append(all,
			hostile{"type " + name, func(p *amqp.Publishing) { p.Type = text }, consumer.ReasonTypeUnknown},
			hostile{"message-id " + name, func(p *amqp.Publishing) { p.MessageId = text }, ""},
			hostile{"message-id " + name + ", failing", func(p *amqp.Publishing) { p.MessageId = text; p.Body = []byte(`{"note":"fail"}`) }, consumer.ReasonTerminal},
			hostile{"correlation-id " + name, func(p *amqp.Publishing) { p.CorrelationId = text }, ""},
			hostile{"correlation-id " + name + ", failing", func(p *amqp.Publishing) { p.CorrelationId = text; p.Body = []byte(`{"note":"fail"}`) }, consumer.ReasonTerminal},
		)
	}
	for _, h := range []string{outbox.HeaderCausation, outbox.HeaderTraceParent, outbox.HeaderTraceState, outbox.PropertyTimestamp, outbox.PropertyRedelivered,
		outbox.PropertyCorrelation, outbox.PropertyType, "_watermill_message_uuid", "x-death", "x-delivery-count", "x-unknown\x1b[31m"} {
		for name, value := range typed {
			all = append(all, hostile{h + " " + name, header(h, value), ""})
		}
		all = append(all, hostile{h + " nasty", header(h, nasty["ANSI"]+nasty["NUL"]+nasty["invalid UTF-8"]), ""})
	}
	return all
}

func hostileBodies() []hostile {
	return []hostile{
		{"empty", body(""), consumer.ReasonUndecodable},
		{"blank", body(" \n"), consumer.ReasonUndecodable},
		{"truncated", body(`{"amount": 1`), consumer.ReasonUndecodable},
		{"more after it", body(`{"amount": 1}{}`), consumer.ReasonUndecodable},
		{"binary", body("\x00\x01\xff\x1b[31m"), consumer.ReasonUndecodable},
		{"invalid character", body("{\"amount\": \u009b}"), consumer.ReasonUndecodable},
		{"deep arrays", body(strings.Repeat("[", 20_000)), consumer.ReasonUndecodable},
		{"deep, closed", body(`{"x":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`), consumer.ReasonUndecodable},
		{"too large", func(p *amqp.Publishing) { p.Body = bytes.Repeat([]byte(" "), outbox.MaxPayload+1) }, consumer.ReasonTooLarge},
		{"twice", body(`{"amount": 1, "amount": 999}`), consumer.ReasonUndecodable},
		{"twins", body(`{"amount": 1, "AMOUNT": 999}`), consumer.ReasonUndecodable},
		{"escaped twins", body(`{"amount": 1, "\u0061mount": 999}`), consumer.ReasonUndecodable},
		{"1e400000", body(`{"amount": 1e400000}`), consumer.ReasonUndecodable},
		{"long number", body(`{"amount": ` + strings.Repeat("9", 100_000) + `}`), consumer.ReasonUndecodable},
		{"2^53+1", body(`{"amount": 9007199254740993}`), ""},
		{"NUL in a string", body(`{"note": "a\u0000b"}`), consumer.ReasonExhausted},
		{"surrogate", body(`{"note": "\ud800"}`), ""},
		{"ANSI in an error", body(`{"note": "fail\u001b[31m\r\n\u009b\u202e"}`), consumer.ReasonTerminal},
		{"another type", body(`"amount"`), consumer.ReasonUndecodable},
		{"null", body(`null`), ""},
	}
}

func deep(n int) any {
	var v any = "x"
	for range n {
		v = []any{v}
	}
	return v
}

// A stand is a consumer of hostile messages and their innocent neighbors.
type stand struct {
	pool   *pgxpool.Pool
	schema string
	queue  string
	ch     *amqp.Channel
	log    *bytes.Buffer
	stop   func()
	amount int // of the last innocent message
}

func (s *stand) handler() consumer.Handler[charge] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[charge], emit consumer.Emit) error {
		if strings.HasPrefix(in.Body.Note, "fail") {
			return consumer.Terminal(fmt.Errorf("the note is %s, of message %s", in.Body.Note, in.ID))
		}
		emit(outbox.Message{Topic: "paid", Step: "ship", Payload: []byte("{}")})
		_, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".effect (name, scope, key, n, amount, note) VALUES ($1, $2, $3, $4, $5, $6)",
			in.Metadata.Get("x-case"), in.Scope, in.Key, in.N, in.Body.Amount, in.Body.Note)
		return err
	}
}

func newStand(t *testing.T, batch int) *stand {
	t.Helper()
	pool, schema := pgtest.Schema(t, "CREATE TABLE {schema}.effect (id bigserial, name text, scope text, key text, n text, amount bigint, note text)")
	s := &stand{pool: pool, schema: schema, log: &bytes.Buffer{}, ch: rabbittest.Channel(t, rabbittest.URL())}
	cfg, err := rabbitmq.NewConfig(rabbittest.URL(), "svc", &rabbitmq.ConfigOptions{Prefix: rabbittest.Name()})
	if err != nil {
		t.Fatal(err)
	}
	s.queue = cfg.Queue.GenerateName("pay")
	rabbittest.Delete(t, []string{s.queue, s.queue + ".dead"}, []string{cfg.Exchange.GenerateName("pay")})
	sub, err := rabbitmq.NewSubscriber(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Close() })
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "pay"); err != nil {
		t.Fatal(err)
	}
	step := consumer.Step{Name: "pay", Action: consumer.On("pay", s.handler()), MaxAttempts: 2, RetryBase: time.Millisecond, RetryCap: time.Millisecond}
	c, err := consumer.New(pool, sub, []consumer.Step{step}, &consumer.Options{Schema: schema, BatchSize: batch, Logger: slog.New(bothFormats(s.log))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		_ = sub.Close()
	})
	t.Cleanup(s.stop)
	return s
}

func (s *stand) texts(t *testing.T, query string, args ...any) []string {
	t.Helper()
	rows, _ := s.pool.Query(t.Context(), strings.ReplaceAll(query, "{schema}", s.schema), args...)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return all
}

// good returns a message that runs.
func (s *stand) good(name, key string) amqp.Publishing {
	s.amount++
	return amqp.Publishing{
		MessageId: uuid.NewString(), Type: "pay", ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: time.Now(),
		Headers: amqp.Table{outbox.HeaderKey: key, outbox.HeaderScope: "tenant", "x-case": name},
		Body:    fmt.Appendf(nil, `{"amount": %d}`, s.amount),
	}
}

func (s *stand) publish(t *testing.T, p amqp.Publishing) {
	t.Helper()
	if err := s.ch.PublishWithContext(t.Context(), "", s.queue, true, false, p); err != nil {
		t.Fatalf("publish: %v", err)
	}
}

func (s *stand) await(t *testing.T, what, query string, want int) {
	t.Helper()
	last := ""
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		if last = s.texts(t, query)[0]; last == fmt.Sprint(want) {
			return
		}
	}
	t.Errorf("%s: %s, want %d", what, last, want)
}

// Whatever comes, each hostile message costs one dead letter and nothing else,
// and the messages before and behind it, of the same key and of others, run.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"one by one": 1, "batches": 0} {
		for group, all := range map[string][]hostile{"keys": hostileKeys(), "properties": hostileProperties(), "bodies": hostileBodies()} {
			t.Run(name+"/"+group, func(t *testing.T) {
				t.Parallel()
				s := newStand(t, batch)
				sent := map[string]amqp.Publishing{}
				effects, letters := 0, 0
				for i, h := range all {
					key := fmt.Sprintf("key-%d:pay", i)
					s.publish(t, s.good("before "+h.name, key+"#before"))
					p := s.good(h.name, key)
					h.change(&p)
					s.publish(t, p)
					s.publish(t, s.good("behind "+h.name, key+"#behind"))
					sent[h.name] = p
					if effects += 2; h.reason == "" {
						effects++
					} else {
						letters++
					}
				}
				s.await(t, "dead letters", "SELECT count(*)::text FROM {schema}.parked WHERE state = 'dead'", letters)
				s.await(t, "effects", "SELECT count(*)::text FROM {schema}.effect", effects)
				s.await(t, "other parked messages", "SELECT count(*)::text FROM {schema}.parked WHERE state <> 'dead'", 0)
				s.stop()
				s.checkQueues(t)
				for _, h := range all {
					s.check(t, h, sent[h.name])
				}
				checkLog(t, s.log.String())
			})
		}
	}
}

// checkQueues makes sure that nothing came back, and that the broker has given
// nothing up.
func (s *stand) checkQueues(t *testing.T) {
	t.Helper()
	for _, name := range []string{s.queue, s.queue + ".dead"} {
		q, err := s.ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil || q.Messages != 0 {
			t.Errorf("queue %s: %d messages, %v", name, q.Messages, err)
		}
	}
}

// check compares what a hostile message has left behind with what was sent.
func (s *stand) check(t *testing.T, h hostile, p amqp.Publishing) {
	t.Helper()
	for _, name := range []string{"before " + h.name, "behind " + h.name} {
		if got := s.texts(t, "SELECT key FROM {schema}.effect WHERE name = $1", name); len(got) != 1 {
			t.Errorf("%s: %d effects", name, len(got))
		}
	}
	if ran := s.texts(t, "SELECT key FROM {schema}.effect WHERE name = $1", h.name); (len(ran) == 1) != (h.reason == "") || len(ran) > 1 {
		t.Errorf("%s: %d effects, want reason %q", h.name, len(ran), h.reason)
	}
	rows, _ := s.pool.Query(t.Context(), `SELECT reason, message_id, header_names, header_values, payload FROM `+s.schema+`.parked
		WHERE $1::bytea = ANY (header_values)`, []byte(h.name))
	type letter struct {
		Reason        string
		ID            []byte
		Names, Values [][]byte
		Payload       []byte
	}
	letters, err := pgx.CollectRows(rows, pgx.RowToStructByPos[letter])
	if err != nil {
		t.Fatal(err)
	}
	if h.reason == "" {
		if len(letters) > 0 {
			t.Errorf("%s: a dead letter, %s", h.name, letters[0].Reason)
		}
		return
	}
	if len(letters) != 1 || letters[0].Reason != string(h.reason) {
		t.Errorf("%s: dead letters %.300v, want one, %s", h.name, letters, h.reason)
		return
	}
	got, metadata := letters[0], map[string]string{}
	for i, name := range got.Names {
		metadata[string(name)] = string(got.Values[i])
	}
	want, _ := rabbitmq.Marshaler{}.Unmarshal(amqp.Delivery{Headers: p.Headers, MessageId: p.MessageId, Type: p.Type,
		CorrelationId: p.CorrelationId, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, Timestamp: p.Timestamp, Body: p.Body})
	if !bytes.Equal(got.Payload, p.Body) || string(got.ID) != p.MessageId || !reflect.DeepEqual(metadata, map[string]string(want.Metadata)) {
		t.Errorf("%s: kept %q, %.300q, headers %.300q, want %.300q", h.name, got.ID, got.Payload, metadata, want.Metadata)
	}
}

// checkLog looks for what a terminal or a log's reader would take for something else.
func checkLog(t *testing.T, log string) {
	t.Helper()
	if len(log) == 0 {
		t.Error("nothing was logged")
	}
	for line := range strings.Lines(log) {
		line = strings.TrimSuffix(line, "\n")
		if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(line) {
			t.Errorf("log line %.300q", line)
		}
		if !strings.HasPrefix(line, `{"time":`) && !strings.HasPrefix(line, "time=") {
			t.Errorf("forged log line %.300q", line)
		}
		if len(line) > 20_000 {
			t.Errorf("log line of %d bytes", len(line))
		}
	}
}

// bothFormats logs JSON and text.
func bothFormats(w io.Writer) slog.Handler {
	w = &locked{w: w}
	return twoHandlers{slog.NewJSONHandler(w, nil), slog.NewTextHandler(w, nil)}
}

type twoHandlers [2]slog.Handler

func (h twoHandlers) Enabled(context.Context, slog.Level) bool { return true }
func (h twoHandlers) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h twoHandlers) WithGroup(string) slog.Handler            { return h }
func (h twoHandlers) Handle(ctx context.Context, r slog.Record) error {
	if err := h[0].Handle(ctx, r); err != nil {
		return err
	}
	return h[1].Handle(ctx, r)
}

type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// Two headers of one name reach the client, which keeps the last: the message
// runs under that key, and once.
func TestTwoHeadersOfOneName(t *testing.T) {
	t.Parallel()
	s := newStand(t, 0)
	conn, err := amqp.DialConfig(rabbittest.URL(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		c, err := net.Dial(network, addr)
		return renaming{c}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if s.ch, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	p := s.good("twice", "a:pay")
	p.Headers["x-idempotency-kez"] = "b:pay"
	s.publish(t, p)
	s.publish(t, s.good("behind", "c:pay"))
	s.await(t, "effects", "SELECT count(*)::text FROM {schema}.effect", 2)
	if got := s.texts(t, "SELECT key FROM {schema}.effect WHERE name = 'twice'"); len(got) != 1 || got[0] != "a" && got[0] != "b" {
		t.Errorf("effects under the keys %q, want one", got)
	}
}

// renaming writes another header's name, since amqp091 has a map of headers.
type renaming struct{ net.Conn }

func (c renaming) Write(b []byte) (int, error) {
	return c.Conn.Write(bytes.ReplaceAll(b, []byte("x-idempotency-kez"), []byte("x-idempotency-key")))
}
