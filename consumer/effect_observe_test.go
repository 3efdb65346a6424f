package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// A watchedEffect is an Effect whose three functions say what they see.
type watchedEffect struct {
	c                    *Consumer
	saw                  []string
	call, verify, record error // what they return next; verify finds nothing with errNothing
}

var errNothing = errors.New("nothing")

// see notes the entry under which what runs, and how much is in flight.
func (w *watchedEffect) see(ctx context.Context, what string) {
	w.saw = append(w.saw, fmt.Sprint(what, " under ", ctx.Value(entryKey{}), " of ", w.c.Counters().InFlight))
}

func (w *watchedEffect) input() Input {
	return Effect("pay",
		func(ctx context.Context, _ Message[payment], _ string) (string, error) {
			w.see(ctx, "call")
			return "receipt", w.call
		},
		func(ctx context.Context, _ Message[payment], _ string) (string, bool, error) {
			w.see(ctx, "verify")
			if errors.Is(w.verify, errNothing) {
				return "", false, nil
			}
			return "receipt", w.verify == nil, w.verify
		},
		func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ string, emit Emit) error {
			w.see(ctx, "record")
			emit(outbox.Message{Topic: "paid", Step: "next"})
			return w.record
		})
}

// took returns what the functions saw since the last call.
func (w *watchedEffect) took() string {
	saw := w.saw
	w.saw = nil
	return strings.Join(saw, ", ")
}

// Each attempt at an Effect is one entry, from its verify or call to the end of
// its record, and is told with what came of it.
func TestAnObserverIsToldOfEffects(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{}
	w := &watchedEffect{}
	step := f.step(nil, nil)
	step.Action, step.MaxAttempts, step.Settle = w.input(), 2, time.Hour
	w.c = f.consumer(t, Options{Observer: r}, step)
	deliver := func(key string) func() { return func() { handle(t, w.c, stamped(act(key))) } }
	parked := func() {
		f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp() - interval '1 s' WHERE state = 'retrying'")
		runParkedOnce(t, w.c)
	}
	settled := func() {
		f.pass(t)
		runParkedOnce(t, w.c)
	}
	broken := errors.New("broken")
	const (
		delivered = " parked false redelivered false batch 1"
		fromTable = " parked true redelivered false batch 1"
		pay       = "process-payment "
	)
	for _, tt := range []struct {
		name                 string
		do                   func()
		call, verify, record error
		saw                  string
		want                 string
	}{
		{"done", deliver("a"), nil, nil, nil, "call under a-false-1 of 1, record under a-false-1 of 1", pay + "done entered true attempt 1" + delivered},
		{"duplicate", deliver("a"), nil, nil, nil, "", pay + "duplicate entered false attempt 0" + delivered},
		{"fails", deliver("b"), broken, nil, nil, "call under b-false-1 of 1", pay + "retry failed entered true attempt 1" + delivered + " broken"},
		{"verify fails", parked, nil, broken, nil, "verify under b-false-2 of 1", pay + "retry failed entered true attempt 2" + fromTable + " consumer: verify: broken"},
		{"too early", parked, nil, errNothing, nil, "verify under b-false-2 of 1", pay + "retry unsettled entered true attempt 2" + fromTable + " " + errUnsettled.Error()},
		{"found after the last attempt", settled, nil, nil, nil, "verify under b-false-2 of 1, record under b-false-2 of 1", pay + "done entered true attempt 2" + fromTable},
		{"refused", deliver("c"), Terminal(broken), nil, nil, "call under c-false-1 of 1", pay + "dead terminal entered true attempt 1" + delivered + " broken"},
		{"a person must decide", deliver("d"), Park(broken), nil, nil, "call under d-false-1 of 1", pay + "dead parked entered true attempt 1" + delivered + " broken"},
		{"record fails", deliver("e"), nil, nil, Terminal(broken), "call under e-false-1 of 1, record under e-false-1 of 1", pay + "dead terminal entered true attempt 1" + delivered + " broken"},
		{"not done", deliver("g"), NotDone(broken), nil, nil, "call under g-false-1 of 1", pay + "retry failed entered true attempt 1" + delivered + " broken"},
		{"not done again", parked, NotDone(broken), nil, nil, "call under g-false-2 of 1", pay + "dead attempts-exhausted entered true attempt 2" + fromTable + " broken"},
		{"fails for good", deliver("h"), broken, nil, nil, "call under h-false-1 of 1", pay + "retry failed entered true attempt 1" + delivered + " broken"},
		{"calls once more", settled, broken, errNothing, nil, "verify under h-false-2 of 1, call under h-false-2 of 1", pay + "retry failed entered true attempt 2" + fromTable + " broken"},
		{"is asked at the end", settled, nil, errNothing, nil, "verify under h-false-2 of 1", pay + "dead attempts-exhausted entered true attempt 2" + fromTable + " " + errSpent.Error()},
	} {
		w.call, w.verify, w.record = tt.call, tt.verify, tt.record
		tt.do()
		if diff := cmp.Diff([]string{tt.want}, r.take(t)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if got := w.took(); got != tt.saw {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.saw)
		}
	}
	f.checkEffectCounters(t, w.c.Counters())
}

// checkEffectCounters compares them with what TestAnObserverIsToldOfEffects has
// done.
func (f *fixture) checkEffectCounters(t *testing.T, got Counters) {
	t.Helper()
	s := got.Steps[0]
	want := map[Outcome]uint64{OutcomeDone: 2, OutcomeDuplicate: 1, OutcomeRetry: 6, OutcomeDead: 5}
	if diff := cmp.Diff(want, s.Outcomes); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	retries, dead := map[Reason]uint64{ReasonFailed: 5, ReasonUnsettled: 1}, map[Reason]uint64{ReasonTerminal: 2, ReasonParked: 1, ReasonExhausted: 2}
	if diff := cmp.Diff([]map[Reason]uint64{retries, dead}, []map[Reason]uint64{s.Retries, s.Dead}); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	if s.Handler.Count != 13 || s.Lag.Count != 7 || got.InFlight != 0 {
		t.Errorf("%d entries, %d lags, %d in flight; want 13, 7 and 0", s.Handler.Count, s.Lag.Count, got.InFlight)
	}
	// Two for each attempt, one for the duplicate, and one that record has failed in.
	if got.Transactions.Count != 28 || got.RolledBack != 1 {
		t.Errorf("%d transactions, %d rolled back; want 28 and 1", got.Transactions.Count, got.RolledBack)
	}
	headers := f.texts(t, "SELECT headers::text FROM {schema}.outbox ORDER BY id")
	wantHeaders := []string{`{"traceparent":"00-a-false-1","tracestate":"own"}`, `{"traceparent":"00-b-false-2","tracestate":"own"}`}
	if diff := cmp.Diff(wantHeaders, headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// An attempt whose outcome cannot be stored is undecided. One that is over already,
// by a COMMIT whose answer was lost or because another attempt took over, is a
// duplicate.
func TestAnObserverIsToldOfEffectsThatAreLost(t *testing.T) {
	t.Parallel()
	const entered = " entered true attempt 1 parked false redelivered false batch 1"
	for name, tt := range map[string]struct {
		loss   pgtest.Loss
		during func(f *fixture)
		want   string
		stored stored
	}{
		"nothing can be stored": {pgtest.LoseCommit, func(*fixture) {}, "undecided" + entered + " consumer: ", stored{Row: "retrying 1 0", Parked: "retrying calling 1?"}},
		"the answer is lost":    {pgtest.LoseReply, func(*fixture) {}, "duplicate" + entered, stored{Row: "done 1 0"}},
		"it is overtaken":       {pgtest.LoseNothing, func(f *fixture) { f.exec(t, "UPDATE {schema}.parked SET attempts = 2") }, "duplicate" + entered, stored{Row: "retrying 1 0", Parked: "retrying calling 2?"}},
		"its goroutine ends":    {pgtest.LoseNothing, func(*fixture) { runtime.Goexit() }, "undecided" + entered + " " + errNoReturn.Error(), stored{Row: "retrying 1 0", Parked: "retrying calling 1?"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy, pool := pgtest.NewProxy(t)
			r := &recorder{}
			call := func(context.Context, Message[payment], string) (string, error) {
				proxy.Lose(tt.loss)
				tt.during(f)
				return "receipt", nil
			}
			step := f.step(nil, nil)
			step.Action = Effect("pay", call, nil, f.record())
			c := f.consumerOn(t, pool, Options{Observer: r}, step)
			var lane sync.WaitGroup
			lane.Go(func() { _ = c.Handle(context.WithoutCancel(t.Context()), "pay", stamped(act("k"))) })
			lane.Wait()
			told := r.take(t)
			if len(told) != 1 || !strings.HasPrefix(told[0], "process-payment "+tt.want) {
				t.Errorf("told %q, want one that begins with %q", told, tt.want)
			}
			compareStored(t, tt.stored, stored{Row: f.row(t), Parked: f.doubts(t)})
			if n := c.Counters().InFlight; n != 0 {
				t.Errorf("%d attempts are in flight, want none", n)
			}
		})
	}
}

// A delivery beside a copy that is parked already is a duplicate: that one makes
// the call. The row does not know that copy, as where it was redriven.
func TestAnObserverIsToldOfADeliveryBesideAParkedEffect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{}
	step := f.effectStep(newProvider(t, true).url, false)
	c := f.consumer(t, Options{Observer: r}, step)
	handle(t, f.consumer(t, Options{}, f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return errors.New("no") }, nil)), act("k"))
	handle(t, c, undo("k")) // it waits
	f.exec(t, "DELETE FROM {schema}.parked WHERE kind = 'action'")
	f.exec(t, "UPDATE {schema}.inbox SET state = 'done', undo_digest = NULL")
	r.take(t)
	handle(t, c, undo("k"))
	want := []string{"undo process-payment duplicate entered false attempt 1 parked false redelivered false batch 1"}
	if diff := cmp.Diff(want, r.take(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A call in hand is parked and is not one that failed.
func TestStatsTellCallsApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var c *Consumer
	var during Stats
	step := f.step(nil, nil)
	step.Action = Effect("pay", func(ctx context.Context, _ Message[payment], _ string) (_ string, err error) {
		during, err = c.Stats(ctx)
		return "", errors.Join(err, errors.New("broken"))
	}, nil, f.record())
	c = f.consumer(t, Options{}, step)
	handle(t, c, act("k"))
	after, err := c.Stats(t.Context())
	if err != nil || during.Calling != 1 || during.Retrying != 0 || after.Calling != 0 || after.Retrying != 1 {
		t.Errorf("during the call %+v, after it %+v, %v; want one calling, then one retrying", during, after, err)
	}
}
