package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/suites/consumerstorm"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

const (
	actionType, undoType = consumerstorm.Action, consumerstorm.Compensation

	// stepTopic is one topic for both, so that their order is that of the queue.
	stepTopic = "steps"

	// budget is MaxAttempts of a stage's step, where the stage says nothing else.
	budget = 3

	// never is a wait after a failure that no test outlives: a parked message
	// runs when the test makes it due.
	never = 1000 * time.Hour
)

// batchSizes are what every test of the table runs with.
var batchSizes = map[string]int{"one by one": 1, "batches": 0}

// An outcome is how a handler ends.
type callResult string

const (
	succeeds callResult = "ok"
	fails    callResult = "fail"
	panics   callResult = "panic"
	gives    callResult = "terminal" // gives up
	kills    callResult = "kill"     // the process
	commits  callResult = "commit"   // its transaction, by itself
)

// A script says how the handler of kind ends for key.
type script func(kind, key string) callResult

func always(o callResult) script { return func(string, string) callResult { return o } }

type amount struct {
	Amount int `json:"amount"`
}

// A stage is a schema with what consumers on it leave behind.
type stage struct {
	pool   *pgxpool.Pool
	schema string
	ledger *consumerstorm.Ledger
	batch  int // Options.BatchSize
	limit  int // Step.MaxAttempts

	ordered bool // Step.Ordered
}

func newStage(t *testing.T, batch int) *stage {
	t.Helper()
	pool, schema := pgtest.Schema(t, consumerstorm.SQLCreateTables)
	return &stage{pool: pool, schema: schema, batch: batch, limit: budget, ledger: consumerstorm.NewLedger(pgtest.Pool(t, pgtest.URL()), schema)}
}

// step returns a step whose handlers note their entry, do their work and then end
// as how says.
func (s *stage) step(how script) consumer.Step {
	work := func(ctx context.Context, tx pgx.Tx, in consumer.Message[amount], _ consumer.Emit) error {
		m := consumerstorm.Message{ID: in.ID, Key: in.Key, Kind: in.Type, Payload: in.Payload}
		if err := s.ledger.Enter(ctx, m); err != nil {
			return err
		}
		if err := s.ledger.Effect(ctx, tx, m); err != nil {
			return err
		}
		how := how(in.Type, in.Key)
		if how == commits {
			_, err := tx.Conn().Exec(ctx, "COMMIT")
			return err
		}
		return end(how)
	}
	step := consumer.Step{
		Name: "pay", Action: consumer.On(stepTopic, work), Compensation: consumer.On(stepTopic, work),
		MaxAttempts: s.limit, Ordered: s.ordered, RetryBase: never, RetryCap: never,
	}
	step.Action.Type, step.Compensation.Type = actionType, undoType
	return step
}

func end(o callResult) error {
	switch o {
	case fails:
		return errors.New("not now")
	case panics:
		panic("a handler's panic")
	case gives:
		return consumer.Terminal(errors.New("never"))
	case kills:
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {}
	}
	return nil
}

// options are those of every consumer of the stage: few lanes, so that messages
// of different keys meet in one.
func (s *stage) options() *consumer.Options {
	opts := &consumer.Options{
		Schema: s.schema, BatchSize: s.batch, Lanes: 2, ParkedWorkers: 2, ParkedPoll: 5 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	if os.Getenv("SAGAMILL_TEST_LOG") != "" {
		opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return opts
}

// run lets a consumer work on q until the returned function is called.
func (s *stage) run(t *testing.T, q *queue, steps ...consumer.Step) (stop func()) {
	t.Helper()
	c, err := consumer.New(s.pool, q, steps, s.options())
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		q.inFlight.Wait()
	}
}

// deliver runs a consumer until it has acked msgs.
func (s *stage) deliver(t *testing.T, how script, msgs ...*message.Message) {
	t.Helper()
	q := newQueue()
	q.publish(msgs...)
	stop := s.run(t, q, s.step(how))
	q.drained(t)
	stop()
}

// due makes the parked messages of kind run, whatever their key, and waits until
// they have.
func (s *stage) due(t *testing.T, how script, kind string) {
	t.Helper()
	stop := s.run(t, newQueue(), s.step(how))
	s.makeDue(t, kind)
	stop()
}

// dueOf makes the parked messages of kind run, and succeed, that are of those keys.
func (s *stage) dueOf(t *testing.T, kind string, keys []string) {
	t.Helper()
	stop := s.run(t, newQueue(), s.step(always(succeeds)))
	s.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp() WHERE state = 'retrying' AND kind = $1 AND key = ANY ($2)", kind, keys)
	await(t, "the parked messages have run", func() bool {
		return s.count(t, "SELECT count(*) FROM {schema}.parked WHERE kind = $1 AND key = ANY ($2)", kind, keys) == 0
	})
	stop()
}

// makeDue lets a running consumer run the parked messages of kind once. What ran
// and is parked again is due in the far future, what a worker has taken soon.
func (s *stage) makeDue(t *testing.T, kind string) {
	t.Helper()
	s.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp() WHERE state = 'retrying' AND kind = $1", kind)
	await(t, "the parked messages have run", func() bool {
		return s.count(t, "SELECT count(*) FROM {schema}.parked WHERE state = 'retrying' AND due_at < clock_timestamp() + interval '1 minute'") == 0
	})
}

// settle lets everything that is parked run until it need not run any more, with
// handlers that succeed.
func (s *stage) settle(t *testing.T) {
	t.Helper()
	stop := s.run(t, newQueue(), s.step(always(succeeds)))
	for range budget { // a compensation may wait for its action, and be handed back
		s.makeDue(t, actionType)
		s.makeDue(t, undoType)
	}
	stop()
}

func (s *stage) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", s.schema), args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func (s *stage) count(t *testing.T, query string, args ...any) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), strings.ReplaceAll(query, "{schema}", s.schema), args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// A look is what can be seen of one key.
type look struct {
	state          string
	attempts       int
	undone         int
	effects        []string
	parked         []string // with their attempts
	entries, undos int      // into the handlers
}

// A standing is what can be seen of one key, without what depends on how often a process died.
type standing struct {
	state   string
	effects string // separated by ", "
	parked  string // "state kind reason" of each message, separated by "; "
}

func (l *look) standing() standing {
	parked := make([]string, len(l.parked))
	for i, p := range l.parked {
		parked[i] = p[:strings.LastIndexByte(p, ' ')]
	}
	return standing{l.state, strings.Join(l.effects, ", "), strings.Join(parked, "; ")}
}

// withParked returns s with one more parked message.
func (s standing) withParked(message string) standing {
	if s.parked != "" {
		s.parked += "; "
	}
	s.parked += message
	return s
}

// countEffects returns how many handlers have left their effect.
func (s standing) countEffects() int {
	if s.effects == "" {
		return 0
	}
	return 1 + strings.Count(s.effects, ", ")
}

// looks returns what can be seen of every key. A state "absent" is no row.
func (s *stage) looks(t *testing.T) map[string]*look {
	t.Helper()
	e, err := s.ledger.Read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*look{}
	of := func(key string) *look {
		if all[key] == nil {
			all[key] = &look{state: "absent"}
		}
		return all[key]
	}
	for _, r := range e.Rows {
		l := of(r.Key)
		l.state, l.attempts, l.undone = r.State, r.Attempts, r.Undone
	}
	for _, f := range e.Effects {
		of(f.Key).effects = append(of(f.Key).effects, effectText(f.Kind, f.Payload))
	}
	for _, p := range e.Parked {
		of(p.Key).parked = append(of(p.Key).parked, fmt.Sprint(p.State, " ", p.Kind, " ", p.Reason, " ", p.Attempts))
	}
	for _, n := range e.Entries {
		if n.Kind == actionType {
			of(n.Key).entries++
		} else {
			of(n.Key).undos++
		}
	}
	return all
}

// effectText is "act" or "undo" with the amount of the payload.
func effectText(kind string, payload []byte) string {
	verb := map[string]string{actionType: "act", undoType: "undo"}[kind]
	return verb + " " + strings.TrimSuffix(strings.TrimPrefix(string(payload), `{"amount":`), "}")
}

// finish lets everything that is parked run, over and over, until nothing is.
func (s *stage) finish(t *testing.T, how script) {
	t.Helper()
	stop := s.run(t, newQueue(), s.step(how))
	defer stop()
	await(t, "nothing is parked to run again", func() bool {
		s.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp() WHERE state = 'retrying' AND due_at > clock_timestamp() + interval '1 minute'")
		return s.count(t, "SELECT count(*) FROM {schema}.parked WHERE state = 'retrying'") == 0
	})
}
