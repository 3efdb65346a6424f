package saga_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A state, or a progress, that is not of the definition's makes dead letters of replies
// and has a person asked where there is none. The instance is unharmed: once that is
// mended, the dead letter redriven, it goes on.
func TestAnInstanceThatDoesNotFitIsUnharmed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ spoil, want string }{
		"state":    {`state = '{"item": 7}'`, "does not fit the definition: the state of the instance"},
		"progress": {`progress = '{"phase":"running","steps":[{}]}'`, "does not fit the definition: the instance has 1 steps"},
		"no JSON":  {`progress = '{'`, "does not fit the definition: progress"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			silent := p.broker.Subscriber("silent")
			for _, topic := range []string{"flight.book", "hotel.book"} {
				if err := silent.SubscribeInitialize(topic); err != nil {
					t.Fatal(err)
				}
				p.drain(silent, topic)
			}
			d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
			p.orchestrate(nil, d)
			start(p, d, "k", trip{Item: "x"})
			p.exec("CREATE TABLE {schema}.kept AS SELECT * FROM {schema}.saga")
			p.exec("UPDATE {schema}.saga SET " + tt.spoil)
			p.publish(outbox.Message{Topic: saga.Topic("trip"), Type: saga.TypeReply, Key: "k", Step: "flight", N: "1.1.d", Payload: []byte(`{"outcome":"done","result":{"number":"LH1"}}`)})
			letters, err := operator.NewDeadLetters(p.db, operator.Inbox, &operator.Options{Schema: p.schema})
			if err != nil {
				t.Fatal(err)
			}
			if letter := p.letter(letters, 1); !strings.Contains(letter.Error, tt.want) || letter.Reason != consumer.ReasonTerminal {
				t.Errorf("dead letter %s: %q, want it to say %q", letter.Reason, letter.Error, tt.want)
			}
			p.untilSQL("k", "revision = 0")
			p.exec("UPDATE {schema}.saga SET due_at = now()") // a timer cannot use it either
			if reason := p.until("k", saga.StatusStuck); !strings.Contains(reason, tt.want) {
				t.Errorf("stuck: %q, want it to say %q", reason, tt.want)
			}
			p.untilSQL("k", "revision = 0 AND due_at IS NULL")
			p.exec("UPDATE {schema}.saga AS s SET state = kept.state, progress = kept.progress FROM {schema}.kept")
			if _, err := letters.Redrive(t.Context(), operator.Filter{}, nil); err != nil {
				t.Fatal(err)
			}
			p.untilSQL("k", `state = '{"item":"x","numbers":["LH1"]}' AND status = 'running'`)
		})
	}
}

// A deadline passes while no orchestrator runs. The next one sees to it.
func TestADeadlineSurvivesARestart(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := book("flight")
	s.Deadline = 20 * time.Millisecond
	d := saga.Must(saga.Define("trip", 1, s))
	start(p, d, "k", trip{Item: "x"})
	p.untilSQL("k", "due_at < clock_timestamp()")
	p.orchestrate(nil, d)
	p.until("k", saga.StatusCompensating) // nobody has answered yet
	p.participate(p.booking("flight"))
	p.until("k", saga.StatusCompensated)
}

// exec executes a statement; "{schema}" is the test's.
func (p *place) exec(sql string) {
	p.t.Helper()
	if _, err := p.db.Exec(p.t.Context(), strings.ReplaceAll(sql, "{schema}", p.schema)); err != nil {
		p.t.Fatal(err)
	}
}

// A brittle state cannot be read again.
type brittle struct{ Item string }

// UnmarshalJSON implements [json.Unmarshaler].
func (*brittle) UnmarshalJSON([]byte) error { panic("not again") }

// A state whose own decoding panics is one that does not fit: no attempt changes that.
func TestAStateThatPanicsMakesADeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := saga.Must(saga.Define("brittle", 1, saga.Step[brittle]{Name: "flight", Do: saga.Tell("flight.book", func(s *brittle) request { return request(*s) })}))
	p.orchestrate(nil, d)
	p.participate(p.booking("flight"))
	start(p, d, "k", brittle{Item: "x"})
	letters, err := operator.NewDeadLetters(p.db, operator.Inbox, &operator.Options{Schema: p.schema})
	if err != nil {
		t.Fatal(err)
	}
	if letter := p.letter(letters, 1); letter.Reason != consumer.ReasonTerminal || letter.Attempts != 1 || !strings.Contains(letter.Error, "not again") {
		t.Errorf("dead letter %s after %d attempts: %q", letter.Reason, letter.Attempts, letter.Error)
	}
}
