package consumer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

func TestEffectQueriesAreValid(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.Schema(t)
	pgtest.PrepareAll(t, newEffectQueries(schema))
}

// While a call is under way nothing is locked and no connection is taken, a
// duplicate is acked without a call, and a compensation waits.
func TestACallHoldsNoTransaction(t *testing.T) {
	t.Parallel()
	for _, verify := range []bool{false, true} {
		t.Run(fmt.Sprint("verify ", verify), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, !verify)
			c := f.consumer(t, Options{}, f.effectStep(p.url, verify))
			calls := 0
			p.arrived = func(string) {
				if calls++; calls > 1 {
					return
				}
				if n := f.pool.Stat().AcquiredConns(); n != 0 {
					t.Errorf("%d connections are in use", n)
				}
				compareStored(t, stored{Row: "retrying 1 0", Parked: "retrying calling 1?"}, stored{Row: f.row(t), Parked: f.doubts(t)})
				if n := runParkedOnce(t, c); n != 0 {
					t.Error("the parked copy is due while its call is under way")
				}
				handle(t, c, act("k"), undo("k"))
			}
			handle(t, c, act("k"), act("k"))
			compareStored(t, stored{Row: "done 1 0", Parked: "retrying waits-for-action 0", Effects: "receipt of pay k 1"}, stored{Row: f.row(t), Parked: f.doubts(t), Effects: f.effects(t)})
			handle(t, c, undo("k")) // the copy that has waited wins
			runParkedOnce(t, c)
			handle(t, c, undo("k"), act("k"))
			compareStored(t, stored{Row: "compensated 1 1", Effects: "receipt of pay k 1, receipt of refund k 2"}, stored{Row: f.row(t), Parked: f.doubts(t), Effects: f.effects(t)})
			if got, want := p.made(), "pay, refund / 2"; got != want || calls != 2 {
				t.Errorf("the provider made %q in %d calls, want %q in 2", got, calls, want)
			}
		})
	}
}

// A lost reply leaves a doubt that the next attempt clears: by the key, or by
// asking.
func TestALostReplyHasItsEffectOnce(t *testing.T) {
	t.Parallel()
	for _, verify := range []bool{false, true} {
		t.Run(fmt.Sprint("verify ", verify), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, !verify)
			step := f.effectStep(p.url, verify)
			step.Settle = time.Hour // what is found is believed at once
			c := f.consumer(t, Options{}, step)
			p.loseReply()
			handle(t, c, act("k"))
			compareStored(t, stored{Row: "retrying 1 0", Parked: "retrying failed 1?"}, stored{Row: f.row(t), Parked: f.doubts(t)})
			runParkedOnce(t, c)
			p.loseReply()
			handle(t, c, undo("k"))
			runParkedOnce(t, c)
			compareStored(t, stored{Row: "compensated 2 2", Effects: "receipt of pay k 1, receipt of refund k 2"}, stored{Row: f.row(t), Parked: f.doubts(t), Effects: f.effects(t)})
			wantAsked := map[bool]int{true: 2}[verify]
			if got, want := p.made(), "pay, refund / 2"; got != want || p.times(&p.asked) != wantAsked {
				t.Errorf("the provider made %q and was asked %d times, want %q, %d", got, p.asked, want, wantAsked)
			}
		})
	}
}

// What the error of a call says about the effect, over two attempts.
func TestWhatAnErrorSaysAboutTheEffect(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		verify bool
		refuse []string
		want   []string // parked, after each attempt
		asked  int
	}{
		{true, []string{"not done"}, []string{"retrying failed 1", ""}, 0},
		{true, []string{"error", "not done"}, []string{"retrying failed 1?", "retrying failed 2", ""}, 1},
		{false, []string{"error", "not done"}, []string{"retrying failed 1?", "retrying failed 2?", ""}, 0}, // the doubt stays
		{true, []string{"never"}, []string{"dead terminal 1?"}, 0},
		{true, []string{"never, not done"}, []string{"dead terminal 1"}, 0},
		{true, []string{"a person decides"}, []string{"dead parked 0?"}, 0},
		{true, []string{"a person decides, not done"}, []string{"dead parked 0"}, 0},
		{false, []string{"error", "never, not done"}, []string{"retrying failed 1?", "dead terminal 2?"}, 0},
	} {
		t.Run(fmt.Sprint(tt.verify, " ", tt.refuse), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, !tt.verify)
			p.refuse = tt.refuse
			c := f.consumer(t, Options{}, f.effectStep(p.url, tt.verify))
			for i, want := range tt.want {
				if i == 0 {
					handle(t, c, act("k"))
				} else {
					f.pass(t)
					runParkedOnce(t, c)
				}
				if got := f.doubts(t); got != want {
					t.Errorf("parked after attempt %d: %q, want %q", i+1, got, want)
				}
			}
			if got := p.times(&p.asked); got != tt.asked {
				t.Errorf("asked %d times, want %d", got, tt.asked)
			}
		})
	}
}

// A call that panics or runs out of time is in doubt.
func TestACallThatDoesNotReturnIsInDoubt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	step := f.effectStep("", true)
	step.Timeout = 50 * time.Millisecond
	var asked atomic.Int32
	step.Action = Effect("pay", func(ctx context.Context, in Message[payment], _ string) (any, error) {
		if in.Key == "panic" {
			panic("boom")
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}, func(context.Context, Message[payment], string) (any, bool, error) {
		asked.Add(1)
		return nil, true, nil
	}, func(_ context.Context, _ pgx.Tx, _ Message[payment], result any, _ Emit) error {
		if result != nil {
			return fmt.Errorf("the result is %v", result)
		}
		return nil
	})
	c := f.consumer(t, Options{}, step)
	handle(t, c, act("panic"), act("slow"))
	if got, want := f.doubts(t), "retrying failed 1?; retrying failed 1?"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
	if stack := f.texts(t, "SELECT stack FROM {schema}.parked ORDER BY id"); !strings.Contains(stack[0], "TestACallThatDoesNotReturn") || stack[1] != "" {
		t.Errorf("stacks %q", stack)
	}
	f.finishParked(t, c)
	if got, want := f.row(t), "done 2 0; done 2 0"; got != want || asked.Load() != 2 {
		t.Errorf("%q, asked %d times; want %q, 2", got, asked.Load(), want)
	}
}

// The provider finishes a request long after its client has given up. Until
// then it knows of nothing, which is not believed: a second call would be a
// second effect.
func TestNothingFoundIsNotBelievedBeforeTheCallHasSettled(t *testing.T) {
	t.Parallel()
	for _, happens := range []bool{true, false} {
		t.Run(fmt.Sprint("happens ", happens), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, false)
			goOn := make(chan struct{})
			finish := sync.OnceFunc(func() { close(goOn) })
			t.Cleanup(finish) // the provider cannot be closed before
			var calls atomic.Int32
			giveUp := make(chan struct{})
			p.arrived = func(string) {
				if calls.Add(1) > 1 {
					return
				}
				close(giveUp)
				<-goOn
				if !happens {
					panic(http.ErrAbortHandler)
				}
			}
			step := f.effectStep(p.url, true)
			step.Settle = time.Hour
			step.Action = Effect("pay", func(ctx context.Context, in Message[payment], key string) (string, error) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				go func() { // ends with the first request
					<-giveUp
					if in.Attempt == 1 {
						cancel()
					}
				}()
				return client{p.url}.call("pay")(ctx, in, key)
			}, client{p.url}.verify("pay"), f.record())
			c := f.consumer(t, Options{}, step)
			handle(t, c, act("k"))
			for range 3 {
				f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp()")
				runParkedOnce(t, c)
				if diff := cmp.Diff(stored{Row: "retrying 1 0", Parked: "retrying unsettled 1?"}, stored{Row: f.row(t), Parked: f.doubts(t)}); diff != "" {
					t.Fatalf("stored, -want +got:\n%s", diff)
				}
			}
			waits := f.texts(t, "SELECT (due_at > clock_timestamp() + interval '59 minutes' AND due_at = last_at + interval '1 hour')::text FROM {schema}.parked")
			if waits[0] != "true" {
				t.Error("the attempt does not wait for the call to settle")
			}
			finish()
			if happens {
				<-p.entered
			}
			f.pass(t)
			runParkedOnce(t, c)
			compareStored(t, stored{Row: "done 2 0", Effects: "receipt of pay k 1", Calls: "pay / 1"}, stored{Row: f.row(t), Effects: f.effects(t), Calls: p.made()})
		})
	}
}

// A process may have died at the beginning of its call or at the end of its lease. So the call counts as
// settled when Settle has passed after the lease.
func TestACallWithAnUnknownEndSettlesAfterItsLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, false)
	c := f.consumer(t, Options{}, f.effectStep(p.url, true))
	var calls atomic.Int32
	p.arrived = func(string) {
		if calls.Add(1) > 1 {
			return
		}
		f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp(), last_at = last_at - interval '35 seconds'") // the lease is over
		runParkedOnce(t, c)
		if got, want := f.doubts(t), "retrying unsettled 1?"; got != want {
			t.Errorf("after the lease %q, want %q", got, want)
		}
	}
	handle(t, c, act("k")) // it had not died, only been slow
	compareStored(t, stored{Row: "done 1 0", Calls: "pay / 1"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
}

// MaxAttempts are calls. After the last one in doubt there is one question
// more.
func TestTheBudgetOfAnEffectIsExact(t *testing.T) {
	t.Parallel()
	type answers struct {
		verifyError bool
		found       bool
		want        stored
	}
	for name, tt := range map[string]struct {
		answer  error
		verify  bool
		answers answers
		asked   int32
	}{
		"honours keys":        {errNo, false, answers{want: stored{Row: "dead 3 0", Parked: "dead attempts-exhausted 3?"}}, 0},
		"not done":            {NotDone(errNo), true, answers{want: stored{Row: "dead 3 0", Parked: "dead attempts-exhausted 3"}}, 0},
		"never found":         {errNo, true, answers{want: stored{Row: "dead 3 0", Parked: "dead attempts-exhausted 3"}}, 3},
		"found at last":       {errNo, true, answers{found: true, want: stored{Row: "done 3 0"}}, 3},
		"cannot be asked":     {errNo, true, answers{verifyError: true, want: stored{Row: "dead 3 0", Parked: "dead attempts-exhausted 3?"}}, 3},
		"panics, never found": {nil, true, answers{want: stored{Row: "dead 3 0", Parked: "dead attempts-exhausted 3"}}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var calls, asked atomic.Int32
			verify := func(context.Context, Message[payment], string) (string, bool, error) {
				if n := asked.Add(1); tt.answers.verifyError {
					return "", false, errNo
				} else {
					return "found", tt.answers.found && n == 3, nil
				}
			}
			if !tt.verify {
				verify = nil
			}
			step := f.effectStep("", false)
			step.MaxAttempts = 3
			step.Action = Effect("pay", func(_ context.Context, in Message[payment], _ string) (string, error) {
				if n := calls.Add(1); int(n) != in.Attempt && !tt.answers.verifyError {
					t.Errorf("call %d is told that it is attempt %d", n, in.Attempt)
				}
				if tt.answer == nil {
					panic("boom")
				}
				return "", tt.answer
			}, verify, f.record())
			c := f.consumer(t, Options{}, step)
			handle(t, c, act("k"))
			f.finishParked(t, c)
			handle(t, c, act("k"))
			wantCalls := map[bool]int32{true: 1, false: 3}[tt.answers.verifyError]
			compareStored(t, tt.answers.want, stored{Row: f.row(t), Parked: f.doubts(t)})
			if calls.Load() != wantCalls || asked.Load() != tt.asked {
				t.Errorf("%d calls and %d questions, want %d and %d", calls.Load(), asked.Load(), wantCalls, tt.asked)
			}
		})
	}
}

// A delivery that is marked as redelivered is one attempt: what was made before
// it has left a row.
func TestARedeliveredEffectIsCountedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, true)
	c := f.consumer(t, Options{}, f.effectStep(p.url, false))
	msg := act("k")
	msg.Metadata.Set(outbox.PropertyRedelivered, "true")
	handle(t, c, msg)
	first, late := undo("void"), act("void")
	late.Metadata.Set(outbox.PropertyRedelivered, "true")
	handle(t, c, first, late) // superseded for certain: an attempt would have left a row
	compareStored(t, stored{Row: "done 1 0; void 0 0"}, stored{Row: f.row(t), Parked: f.doubts(t)})
}

// A step that was a plain handler may have died in it, by the row's count. Its
// next attempt is in doubt from the beginning.
func TestAnEffectFollowsAnAttemptOfAHandler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, false)
	step := f.effectStep(p.url, true)
	step.Settle = time.Hour
	c := f.consumer(t, Options{}, step)
	f.exec(t, "INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts) VALUES ('tenant', 'k', 'process-payment', '', 'open', 1)")
	handle(t, c, act("k"))
	compareStored(t, stored{Row: "retrying 1 0", Parked: "retrying unsettled 1?", Calls: " / 0"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
	f.finishParked(t, c)
	compareStored(t, stored{Row: "done 2 0", Calls: "pay / 1"}, stored{Row: f.row(t), Calls: p.made()})
}

// If handlers have used all attempts up there is no call.
func TestAnEffectWithoutAttemptsLeftMakesNoCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, true)
	c := f.consumer(t, Options{}, f.effectStep(p.url, false))
	f.exec(t, "INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts) VALUES ('tenant', 'k', 'process-payment', '', 'open', 5)")
	handle(t, c, act("k"))
	compareStored(t, stored{Row: "dead 5 0", Parked: "dead attempts-exhausted 5?", Calls: " / 0"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
}

// A record that fails is tried again with the result at hand, and after that
// the result is asked for.
func TestARecordThatFails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		fails   int32
		err     error
		want    stored // after the first attempt
		asked   int
		records int32
	}{
		{"once", 1, errNo, stored{Row: "done 1 0"}, 0, 2},
		{"a while", maxTries, errNo, stored{Row: "retrying 1 0", Parked: "retrying failed 1?"}, 1, maxTries + 1},
		{"a long while", 2 * maxTries, errNo, stored{Row: "retrying 1 0", Parked: "retrying failed 1?"}, 2, 2*maxTries + 1},
		{"for good", 1, Terminal(errNo), stored{Row: "dead 1 0", Parked: "dead terminal 1?"}, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, false)
			step := f.effectStep(p.url, true)
			work := f.record()
			var records atomic.Int32
			step.Action = Effect("pay", client{p.url}.call("pay"), client{p.url}.verify("pay"),
				func(ctx context.Context, tx pgx.Tx, in Message[payment], result string, emit Emit) error {
					if err := work(ctx, tx, in, result, emit); err != nil || records.Add(1) > tt.fails {
						return err
					}
					return tt.err
				})
			c := f.consumer(t, Options{}, step)
			handle(t, c, act("k"))
			compareStored(t, tt.want, stored{Row: f.row(t), Parked: f.doubts(t)})
			f.pass(t)
			runParkedOnce(t, c)
			if got := f.doubts(t); strings.HasPrefix(got, "retrying") && got != "retrying failed 2?" {
				t.Errorf("a result that was found and not recorded leaves %q", got)
			}
			f.finishParked(t, c)
			if got := p.made(); got != "pay / 1" || p.times(&p.asked) != tt.asked || records.Load() != tt.records {
				t.Errorf("made %q, asked %d times, recorded %d times; want one payment, %d, %d", got, p.asked, records.Load(), tt.asked, tt.records)
			}
			if got := f.effects(t); !strings.HasPrefix(tt.want.Row, "dead") && got != "receipt of pay k 1" {
				t.Errorf("recorded %q", got)
			}
		})
	}
}

// An attempt that made no call for certain leaves no doubt, but the next one
// does while it is under way.
func TestEveryAttemptIsInDoubtDuringItsCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, true)
	var during []string
	p.arrived = func(string) { during = append(during, f.doubts(t)) }
	p.refuse = []string{"not done"}
	c := f.consumer(t, Options{}, f.effectStep(p.url, true))
	handle(t, c, act("k"))
	f.finishParked(t, c)
	if got, want := strings.Join(during, "; "), "retrying calling 1?; retrying calling 2?"; got != want {
		t.Errorf("parked during the calls %q, want %q", got, want)
	}
}

// A lease whose transaction rolled back is no lease: another delivery has it by
// the time that this one comes round again.
func TestALeaseThatDidNotCommitIsForgotten(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, false)
	c := f.consumer(t, Options{}, f.effectStep(p.url, true))
	var calls atomic.Int32
	p.arrived = func(string) {
		if calls.Add(1) > 1 {
			return
		}
		a, rejected := readAttempt(c, "pay", act("k"))
		if rejected != nil {
			t.Fatal(rejected)
		}
		a.call = &effectCall{parked: parkedCopy{id: 1 << 40, attempts: 1}, until: time.Now().Add(time.Hour)}
		if err := c.executor.executeAttempt(t.Context(), a); err != nil {
			t.Error(err)
		}
	}
	handle(t, c, act("k"))
	compareStored(t, stored{Row: "done 1 0", Calls: "pay / 1"}, stored{Row: f.row(t), Calls: p.made()})
}

// What a record emits is in the outbox with its commit, follows the message,
// and wakes the relay.
func TestARecordEmits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, true)
	step := f.effectStep(p.url, false)
	step.Action = Effect("pay", client{p.url}.call("pay"), nil, func(_ context.Context, _ pgx.Tx, _ Message[payment], result string, emit Emit) error {
		emit(outbox.Message{Topic: "paid", Step: "next", Payload: []byte(result)})
		return nil
	})
	var woken atomic.Int32
	c := f.consumer(t, Options{Wake: func() { woken.Add(1) }}, step)
	handle(t, c, act("k"))
	got := f.texts(t, "SELECT concat_ws(' ', topic, scope, key, step, convert_from(payload, 'UTF8')) FROM {schema}.outbox")
	if want := "paid tenant k next receipt of pay"; strings.Join(got, "; ") != want || woken.Load() != 1 {
		t.Errorf("the outbox has %q, woken %d times; want %q, once", got, woken.Load(), want)
	}
}

// Another attempt has taken over while this one's call was under way. What it
// has to say is dropped, result or failure.
func TestWhatComesAfterTheLeaseIsFencedOff(t *testing.T) {
	t.Parallel()
	for _, lost := range []int{0, 1} {
		t.Run(fmt.Sprint(lost, " replies lost"), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, false)
			step := f.effectStep(p.url, true)
			c := f.consumer(t, Options{}, step)
			first := true
			work := client{p.url}.call("pay")
			step.Action = Effect("pay", func(ctx context.Context, in Message[payment], key string) (string, error) {
				result, err := work(ctx, in, key)
				if first {
					first = false
					f.finishParked(t, c)
				}
				return result, err
			}, client{p.url}.verify("pay"), f.record())
			p.lose = lost
			handle(t, f.consumer(t, Options{}, step), act("k"))
			compareStored(t, stored{Row: "done 2 0", Effects: "receipt of pay k 1", Calls: "pay / 1"}, stored{Row: f.row(t), Parked: f.doubts(t), Effects: f.effects(t), Calls: p.made()})
		})
	}
}

// Run waits for a call in hand, and ends its context after DrainTimeout. Either
// way its outcome is recorded and the delivery acked.
func TestRunWaitsForCalls(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		drain time.Duration
		want  stored
	}{
		{time.Minute, stored{Row: "done 1 0"}},
		{time.Millisecond, stored{Row: "retrying 1 0", Parked: "retrying failed 1?"}},
	} {
		t.Run(tt.drain.String(), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			entered, stopping := make(chan struct{}), make(chan struct{})
			step := f.effectStep("", false)
			step.Action = Effect("pay", func(ctx context.Context, _ Message[payment], _ string) (string, error) {
				close(entered)
				<-stopping
				if tt.drain == time.Millisecond {
					<-ctx.Done()
				}
				return "done", ctx.Err()
			}, nil, f.record())
			c := f.consumer(t, Options{DrainTimeout: tt.drain}, step)
			c.signals.settled.Enable()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			msg := act("k")
			f.sub.queue("pay") <- msg
			<-entered
			cancel()
			close(stopping)
			if err := <-done; err != nil {
				t.Errorf("Run = %v", err)
			}
			if id := c.signals.settled.Wait(t); id != msg.UUID {
				t.Errorf("acked %s", id)
			}
			compareStored(t, tt.want, stored{Row: f.row(t), Parked: f.doubts(t)})
		})
	}
}

func TestEffectsThatNewRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	call, record := client{}.call("pay"), f.record()
	for name, change := range map[string]func(*Step){
		"Action: Effect needs":                        func(s *Step) { s.Action = Effect("pay", call, nil, Record[payment, string](nil)) },
		"Compensation: Effect needs":                  func(s *Step) { s.Compensation = Effect("pay", Call[payment, string](nil), nil, record) },
		"CancelParked":                                func(s *Step) { s.CancelParked = true },
		"Action: On and OnBytes need":                 func(s *Step) { s.Action = On[payment]("pay", nil) },
		"Compensation: On and OnBytes need":           func(s *Step) { s.Compensation = On[payment]("unpay", nil) },
		"AskFirst: it is for an Effect with a verify": func(s *Step) { s.AskFirst = true },
		"Settle: -1ns":                                func(s *Step) { s.Settle = -1 },
		"Settle: it is for an Effect": func(s *Step) {
			*s = f.step(f.effect("paid"), f.effect("refunded"))
			s.Settle = 1
		},
	} {
		step := f.effectStep("", false)
		change(&step)
		if _, err := New(f.pool, f.sub, []Step{step}, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: New = %v", name, err)
		}
	}
	step := f.effectStep("", false)
	step.Action, step.CancelParked = On("pay", f.effect("paid")), true
	f.consumer(t, Options{}, step) // a compensation may be an effect all the same
	step = f.effectStep("", true)
	step.Action, step.AskFirst = On("pay", f.effect("paid")), true
	f.consumer(t, Options{}, step) // and be asked for alone
}

// A batch would hold its transaction, and the locks of its other messages, for
// as long as the call takes.
func TestAnEffectIsNeverInABatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	both := f.effectStep("", false)
	undoOnly := both
	undoOnly.Action = On("pay", f.effect("paid"))
	for _, s := range []Step{both, undoOnly} {
		c := f.consumer(t, Options{}, s)
		if c.executor.mayShare(c.steps[s.Name], false, 0) {
			t.Errorf("a step with an Effect shares transactions")
		}
	}
}

func TestNotDone(t *testing.T) {
	t.Parallel()
	if NotDone(nil) != nil {
		t.Error("NotDone(nil) is an error")
	}
	for _, err := range []error{NotDone(Terminal(errNo)), Terminal(NotDone(errNo))} {
		if !errors.Is(err, ErrNotDone) || !errors.Is(err, ErrTerminal) || !errors.Is(err, errNo) || err.Error() != errNo.Error() {
			t.Errorf("%#v", err)
		}
	}
}

// A call that ignores its context is not entered after its lease either, which
// is known to have had no effect.
func TestAnAttemptWhoseLeaseIsOverMakesNoCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	step := f.effectStep("", false)
	step.Action = Effect("pay", func(context.Context, Message[payment], string) (string, error) {
		t.Error("a call after the lease")
		return "", nil
	}, nil, f.record())
	c := f.consumer(t, Options{}, step)
	c.executor.effects.effectMargin = -30 * time.Second // the lease ends as it begins
	handle(t, c, act("k"))
	if got, want := f.doubts(t), "retrying failed 1"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}
