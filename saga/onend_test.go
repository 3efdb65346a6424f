package saga_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// noteEnd is an OnEnd that stores what it is told, with a message and a queued statement.
func (p *place) noteEnd(ctx context.Context, tx pgx.Tx, turn saga.Turn, s *trip, status saga.Status, reason string) error {
	s.Numbers = append(s.Numbers, "end")
	turn.Emit(outbox.Message{Topic: "mail", Step: "mail-" + string(status)})
	turn.Queue("INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, 'queued')", turn.Key)
	_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, $2)", turn.Key, fmt.Sprintf("%s%s(%s)", turn.Step, status, reason))
	return err
}

// judgeEnd checks that an instance has ended with one call of noteEnd.
func (p *place) judgeEnd(key string, status saga.Status, effects string) {
	p.t.Helper()
	p.until(key, status) // the status is visible when the effects of the call are
	if got := p.effects(key); got != effects {
		p.t.Errorf("%s: effects %s, want %s", key, got, effects)
	}
	var mails, ends int
	err := p.db.QueryRow(p.t.Context(), `SELECT (SELECT count(*) FROM `+p.schema+`.outbox WHERE key = $1 AND step = $2),
		(SELECT length(state) - length(replace(state, '"end"', '   ')) FROM `+p.schema+`.saga WHERE key = $1)`, key, "mail-"+string(status)).Scan(&mails, &ends)
	if err != nil || mails != 1 || ends != len("end")-1 {
		p.t.Errorf("%s: %d messages, %d in the state: %v", key, mails, ends, err)
	}
}

// newEnds is a place with a participant for flights, and with topics whose messages nobody handles.
func newEnds(t *testing.T) *place {
	t.Helper()
	p := newPlace(t)
	p.participate(p.booking("flight"))
	p.silence("mail", "silent")
	return p
}

// silent is a step without an answer.
var silent = saga.Step[trip]{Name: "silent", Do: saga.Tell("silent", (*trip).request)}

// However a saga ends, OnEnd is called in the transaction that ends it, with the status and the reason.
func TestOnEndIsCalledByWhateverEndsTheSaga(t *testing.T) {
	t.Parallel()
	p := newEnds(t)
	check := func(err error) saga.Step[trip] {
		return saga.Step[trip]{Name: "check", Do: saga.Local(func(context.Context, pgx.Tx, saga.Turn, *trip) error { return err })}
	}
	define := func(name string, limit time.Duration, steps ...saga.Step[trip]) *saga.Definition[trip] {
		d := saga.Must(saga.Define(name, 1, steps...)).OnEnd(p.noteEnd)
		return saga.Must(d.Within(limit))
	}
	replies, starts, refuses := define("replies", 0, book("flight")), define("starts", 0, check(nil)), define("refuses", 0, check(saga.Reject("too much")))
	passes, waits := define("passes", 50*time.Millisecond, silent), define("waits", 0, silent)
	p.orchestrate(nil, replies, starts, refuses, passes, waits)

	start(p, replies, "reply", trip{})
	p.judgeEnd("reply", saga.StatusCompleted, "[flight completed() queued]")
	start(p, replies, "rejection", trip{Item: "no flight"})
	p.judgeEnd("rejection", saga.StatusCompensated, "[compensated(step flight was rejected: there is none) queued]")
	if got := start(p, starts, "start", trip{}); got.Status != saga.StatusCompleted || got.Reason != "" {
		t.Errorf("Start returned %+v", got)
	}
	p.judgeEnd("start", saga.StatusCompleted, "[completed() queued]")
	for _, existed := range []bool{false, true} {
		got := start(p, refuses, "refusal", trip{})
		if got.Existed != existed || got.Status != saga.StatusCompensated || got.Reason != "step check was rejected: too much" {
			t.Errorf("Start returned %+v", got)
		}
	}
	p.judgeEnd("refusal", saga.StatusCompensated, "[compensated(step check was rejected: too much) queued]")
	start(p, passes, "deadline", trip{})
	p.judgeEnd("deadline", saga.StatusCompensated, "[compensated(the saga's deadline of 50ms has passed) queued]")
	start(p, waits, "cancel", trip{})
	p.decideAs("cancel", operator.Decision{Verb: operator.VerbCancel})
	p.judgeEnd("cancel", saga.StatusCompensated, "[compensated(cancelled: it is a test) queued]")
}

// decideAs decides about an instance.
func (p *place) decideAs(key string, d operator.Decision) {
	p.t.Helper()
	n, err := operator.NewInstances(p.db, &operator.Options{Schema: p.schema, By: "ann", Why: "it is a test"})
	if err == nil {
		_, err = n.Decide(p.t.Context(), saga.Address{Key: key}, d)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// A saga whose OnEnd fails has not ended, and nothing of the call is left. It is tried again; an operator sees it, and
// can retry or cancel.
func TestAnOnEndThatFailsHoldsUpTheEnd(t *testing.T) {
	t.Parallel()
	p := newEnds(t)
	var mended atomic.Bool
	failing := func(ctx context.Context, tx pgx.Tx, turn saga.Turn, s *trip, status saga.Status, reason string) error {
		if err := p.noteEnd(ctx, tx, turn, s, status, reason); err != nil || status == saga.StatusCompensated || mended.Load() {
			return err
		}
		switch {
		case s.Item == "invalid":
			turn.Emit(outbox.Message{Topic: "mail"})
		case turn.Attempt == 1 && s.Item == "panic":
			panic("a bug")
		case turn.Attempt == 1 && s.Item == "sql":
			_, _ = tx.Exec(ctx, "nonsense")
		case turn.Attempt == 1:
			return errors.New("not yet")
		}
		return nil
	}
	d := saga.Must(saga.Define("trip", 1, book("flight"))).OnEnd(failing)
	p.orchestrate(nil, d)
	for _, item := range []string{"error", "panic", "sql"} {
		start(p, d, item, trip{Item: item})
	}
	start(p, d, "invalid", trip{Item: "invalid"})
	start(p, d, "cancelled", trip{Item: "invalid"})
	for _, key := range []string{"invalid", "cancelled"} {
		if reason := p.until(key, saga.StatusStuck); !strings.HasPrefix(reason, "OnEnd: outbox: invalid message: ") {
			t.Errorf("%s is stuck by %q", key, reason)
		}
		if got := p.effects(key); got != "[flight]" {
			t.Errorf("%s: effects %s", key, got)
		}
	}
	p.seesEnd("invalid")
	for _, item := range []string{"error", "panic", "sql"} {
		p.judgeEnd(item, saga.StatusCompleted, "[flight completed() queued]")
	}
	mended.Store(true)
	p.decideAs("invalid", operator.Decision{Verb: operator.VerbRetry})
	p.judgeEnd("invalid", saga.StatusCompleted, "[flight completed() queued]")
	p.decideAs("cancelled", operator.Decision{Verb: operator.VerbCancel})
	p.judgeEnd("cancelled", saga.StatusCompensated, "[flight no flight compensated(cancelled: it is a test) queued]")
}

// seesEnd checks what an operator sees of an instance whose OnEnd is stuck.
func (p *place) seesEnd(key string) {
	p.t.Helper()
	n, err := operator.NewInstances(p.db, &operator.Options{Schema: p.schema})
	if err != nil {
		p.t.Fatal(err)
	}
	all, err := n.List(p.t.Context(), operator.InstanceFilter{Key: key}, saga.Address{}, 1)
	if err != nil || len(all) != 1 || all[0].Step != operator.EndStep || all[0].WaitsFor != operator.WaitsForPerson {
		p.t.Errorf("the list has %+v: %v", all, err)
	}
	t, err := n.Get(p.t.Context(), saga.Address{Key: key})
	if last := t.Steps[len(t.Steps)-1]; err != nil || last.Name != operator.EndStep || last.State != operator.StepStuck || last.Attempt != 1 {
		p.t.Errorf("the last step is %+v: %v", last, err)
	}
}

// An OnEnd that no attempt can satisfy is no trap: a definition without it ends the instance, in the same version.
func TestADefinitionWithoutOnEndEndsWhatIsStuckAtIt(t *testing.T) {
	t.Parallel()
	p := newEnds(t)
	plain := saga.Must(saga.Define("trip", 1, book("flight")))
	hopeless := plain.OnEnd(func(_ context.Context, _ pgx.Tx, turn saga.Turn, _ *trip, _ saga.Status, _ string) error {
		turn.Emit(outbox.Message{})
		return nil
	})
	if hopeless.Hash() != plain.Hash() || hopeless.OnEnd(nil).String() != plain.String() {
		t.Error("OnEnd makes another plan")
	}
	first, err := saga.NewOrchestrator(p.db, p.broker.Subscriber("orchestrator"), []saga.Plan{hopeless}, &saga.Options{Schema: p.schema, Logger: quiet, Wake: p.relay.Wake})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(p.ctx)
	ended := make(chan error, 1)
	go func() { ended <- first.Run(ctx) }()
	start(p, hopeless, "k", trip{})
	p.until("k", saga.StatusStuck)
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	p.orchestrate(nil, plain)
	p.await("the plan without OnEnd is registered", func() bool {
		var registered bool
		err := p.db.QueryRow(t.Context(), "SELECT plan NOT LIKE '%on_end%' FROM "+p.schema+".saga_definition").Scan(&registered)
		return err == nil && registered
	})
	p.decideAs("k", operator.Decision{Verb: operator.VerbRetry})
	p.until("k", saga.StatusCompleted)
}

// Of two definitions that differ in their OnEnd, as where a saga nests the one without, neither wins silently.
func TestTwoDefinitionsOfWhichOneHasAnOnEnd(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	plain, err := saga.Define("inner", 1, silent)
	if err != nil {
		t.Fatal(err)
	}
	outer, err := saga.Define("outer", 1, saga.Step[trip]{Name: "inner", Do: saga.Nested(plain, func(s *trip) trip { return *s }, nil)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = saga.NewOrchestrator(p.db, p.broker.Subscriber("orchestrator"), []saga.Plan{outer, plain.OnEnd(p.noteEnd)}, &saga.Options{Schema: p.schema})
	if err == nil || !strings.Contains(err.Error(), "without OnEnd") {
		t.Errorf("NewOrchestrator = %v", err)
	}
}
