package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// replayed marks msg as a replay does.
func replayed(msg *message.Message) *message.Message {
	msg.Metadata.Set(outbox.HeaderReplayed, "2026-11-21T16:24:37Z")
	return msg
}

// setBack does do, and then sets the database back to the moment before.
func (f *fixture) setBack(t *testing.T, do func()) {
	t.Helper()
	tables := []string{"inbox", "parked", "effect", "outbox"}
	for _, table := range tables {
		f.exec(t, "CREATE TABLE {schema}.saved_"+table+" AS SELECT * FROM {schema}."+table)
		f.exec(t, "ALTER TABLE {schema}.saved_"+table+" DROP COLUMN IF EXISTS fingerprint") // the last column; it is computed
	}
	do()
	for _, table := range tables {
		f.exec(t, "DELETE FROM {schema}."+table)
		f.exec(t, "INSERT INTO {schema}."+table+" OVERRIDING SYSTEM VALUE SELECT * FROM {schema}.saved_"+table)
		f.exec(t, "DROP TABLE {schema}.saved_"+table)
	}
}

// asking is an effectStep at a provider that can only be asked, and will have had
// calls settled in an hour.
func (f *fixture) asking(p *provider, askFirst bool) Step {
	s := f.effectStep(p.url, true)
	s.Settle, s.AskFirst = time.Hour, askFirst
	return s
}

// forgetful are the ways in which an attempt comes to ask before the first call that
// the database knows of.
var forgetful = map[string]struct {
	askFirst bool
	mark     func(*message.Message) *message.Message
}{
	"replayed":        {false, replayed},
	"asks first":      {true, func(msg *message.Message) *message.Message { return msg }},
	"replayed, first": {true, replayed},
}

// A database that was set back knows nothing of a payment that was made, nor of its
// refund. Each message that comes again asks, and is recorded without a call.
func TestAForgottenEffectIsAskedFor(t *testing.T) {
	t.Parallel()
	for name, tt := range forgetful {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, false)
			c := f.consumer(t, Options{}, f.asking(p, tt.askFirst))
			asked := p.times(&p.asked)
			again := func(msg func(string) *message.Message) {
				t.Helper()
				f.setBack(t, func() { handle(t, c, msg("k")) })
				asked = p.times(&p.asked)
				handle(t, c, tt.mark(msg("k")), tt.mark(msg("k")))
				if n := p.times(&p.asked) - asked; n != 1 {
					t.Errorf("asked %d times, want once", n)
				}
			}
			again(act)
			compareStored(t, stored{Row: "done 1 0", Effects: "receipt of pay k 1", Calls: "pay / 1"}, stored{Row: f.row(t), Parked: f.doubts(t), Effects: f.effects(t), Calls: p.made()})
			again(undo)
			compareStored(t, stored{Row: "compensated 1 1", Effects: "receipt of pay k 1, receipt of refund k 2", Calls: "pay, refund / 2"}, stored{Row: f.row(t), Parked: f.doubts(t), Effects: f.effects(t), Calls: p.made()})
		})
	}
}

// The restored database may have forgotten a call that was under way. A replayed message that finds no result
// waits for such a call.
func TestAReplayedEffectWaitsForACallThatMayBeUnderWay(t *testing.T) {
	t.Parallel()
	for _, happens := range []bool{true, false} {
		t.Run(fmt.Sprint("happens ", happens), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, false)
			step := f.asking(p, true)
			c := f.consumer(t, Options{}, step)
			handle(t, c, replayed(act("k")))
			compareStored(t, stored{Row: "retrying 0 0", Parked: "retrying unsettled 0?", Calls: " / 0"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
			unseen := 2*c.steps[step.Name].Timeout + effectMargin + step.Settle
			waits := f.texts(t, "SELECT (due_at - clock_timestamp() BETWEEN $1 * interval '1 s' - interval '1 min' AND $1 * interval '1 s')::text FROM {schema}.parked", unseen.Seconds())
			if waits[0] != "true" {
				t.Errorf("it does not wait for %v", unseen)
			}
			if happens {
				p.enter("pay", &Delivery{Scope: "tenant", Key: "k", Step: step.Name})
			}
			f.exec(t, "UPDATE {schema}.parked SET last_at = last_at - (due_at - clock_timestamp()), due_at = clock_timestamp()") // the wait is over
			runParkedOnce(t, c)
			compareStored(t, stored{Row: "done 1 0", Effects: "receipt of pay k 1", Calls: "pay / 1"}, stored{Row: f.row(t), Parked: f.doubts(t), Effects: f.effects(t), Calls: p.made()})
			if got := p.times(&p.asked); got != 2 {
				t.Errorf("asked %d times, want twice", got)
			}
		})
	}
}

// The question may fail, as it does where the provider was lost with the database. The
// wait is no shorter for it.
func TestAQuestionThatFailsDoesNotShortenTheWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	asked, called := 0, 0
	step := Step{
		Name: "pay", Timeout: time.Minute, Settle: time.Microsecond, RetryBase: time.Millisecond, RetryCap: time.Millisecond, MaxAttempts: 4,
		Action: Effect("pay",
			func(context.Context, Message[any], string) (string, error) { called++; return "", nil },
			func(context.Context, Message[any], string) (string, bool, error) {
				if asked++; asked <= 2 {
					return "", false, errors.New("unavailable")
				}
				return "", false, nil
			},
			func(context.Context, pgx.Tx, Message[any], string, Emit) error { return nil }),
	}
	c := f.consumer(t, Options{}, step)
	msg := replayed(act("k"))
	msg.Metadata.Set("type", "pay")
	if err := c.Handle(t.Context(), "pay", msg); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		f.retryNow(t)
		runParkedOnce(t, c)
	}
	if got, want := f.doubts(t), "retrying unsettled 2?"; got != want || asked != 3 || called != 0 {
		t.Errorf("parked %q, asked %d times, called %d times; want %q, 3, 0", got, asked, called, want)
	}
	f.exec(t, "UPDATE {schema}.parked SET last_at = last_at - (due_at - clock_timestamp()), due_at = clock_timestamp()") // the wait is over
	runParkedOnce(t, c)
	if got := f.row(t); got != "done 3 0" || called != 1 {
		t.Errorf("in the end %q, called %d times; want it done by one call", got, called)
	}
}

// A dead letter is marked, because the restore may have forgotten what came of it when
// it was redriven. How long ago it had died says nothing about that call.
func TestADeadLetterThatIsMarkedWaits(t *testing.T) {
	t.Parallel()
	for _, died := range []string{"never", "never, not done"} { // in doubt, and not
		t.Run(died, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, false)
			p.refuse = []string{died}
			step := f.asking(p, false)
			step.Settle = time.Microsecond
			c := f.consumer(t, Options{}, step)
			handle(t, c, act("k"))
			f.exec(t, "UPDATE {schema}.parked SET last_at = last_at - interval '1 day', first_at = first_at - interval '1 day'")
			f.redrive(t, &DeskEdit{Set: map[string]string{outbox.HeaderReplayed: "yes"}})
			for range 2 {
				f.retryNow(t)
				runParkedOnce(t, c)
				compareStored(t, stored{Row: "retrying 0 0", Parked: "retrying unsettled 0?", Calls: " / 0"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
			}
			if _, err := f.desk(t).Bury(t.Context(), f.letterID(t)); err != nil {
				t.Fatal(err)
			}
			f.redrive(t, nil)
			runParkedOnce(t, c)
			compareStored(t, stored{Parked: "retrying unsettled 0?", Calls: " / 0"}, stored{Parked: f.doubts(t), Calls: p.made()})
			p.enter("pay", &Delivery{Scope: "tenant", Key: "k", Step: step.Name}) // the forgotten call has its effect
			f.retryNow(t)
			runParkedOnce(t, c)
			compareStored(t, stored{Row: "done 1 0", Calls: "pay / 1"}, stored{Row: f.row(t), Calls: p.made()})
		})
	}
}

// loseTake has the parked message taken by a process that dies before it has begun an attempt.
func (f *fixture) loseTake(t *testing.T, c *Consumer) {
	t.Helper()
	f.retryNow(t)
	if rows, err := c.retrier.takeParked(t.Context(), 1, c.retrier.stepNames...); err != nil || len(rows) != 1 {
		t.Fatalf("taken %v, %v", rows, err)
	}
	f.retryNow(t)
}

// A take that led to no attempt, since its process died or an operator has hurried another
// one, has called for nothing, and shortens no wait.
func TestALostTakeIsNoAttempt(t *testing.T) {
	t.Parallel()
	marked := &DeskEdit{Set: map[string]string{outbox.HeaderReplayed: "yes"}}
	for name, tt := range map[string]struct {
		refuse  string
		arrange func(t *testing.T, f *fixture, c *Consumer)
		made    string
	}{
		"marked": {"never, not done", func(t *testing.T, f *fixture, c *Consumer) {
			handle(t, c, act("k"))
			f.pass(t)
			f.redrive(t, marked)
		}, " / 0"},
		"marked, in doubt": {"never", func(t *testing.T, f *fixture, c *Consumer) {
			handle(t, c, act("k"))
			f.pass(t)
			f.redrive(t, marked)
		}, " / 0"},
		"in doubt, and buried": {"not done", func(t *testing.T, f *fixture, c *Consumer) {
			handle(t, c, act("k"))
			f.exec(t, "UPDATE {schema}.parked SET in_doubt = true, reason = 'calling', last_at = now(), due_at = now()")
			runParkedOnce(t, c)
			if n, err := f.desk(t).Bury(t.Context(), f.letterID(t)); err != nil || n != 1 {
				t.Fatal(n, err)
			}
			f.redrive(t, nil)
		}, " / 0"},
		"a compensation that has waited": {"", func(t *testing.T, f *fixture, c *Consumer) {
			handle(t, c, act("k"))
			f.exec(t, "UPDATE {schema}.inbox SET state = 'retrying'")
			handle(t, c, replayed(undo("k")))
			f.exec(t, "UPDATE {schema}.inbox SET state = 'done'")
		}, "pay / 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, false)
			if tt.refuse != "" {
				p.refuse = []string{tt.refuse}
			}
			step := f.asking(p, false)
			step.Settle = time.Microsecond
			c := f.consumer(t, Options{}, step)
			tt.arrange(t, f, c)
			f.loseTake(t, c)
			runParkedOnce(t, c)
			compareStored(t, stored{Parked: "retrying unsettled 1?", Calls: tt.made}, stored{Parked: f.doubts(t), Calls: p.made()})
		})
	}
}

// A replayed message that is delivered once more, since the process died that had it first,
// waits as it would have then.
func TestAReplayedMessageWaitsAlsoIfItIsRedelivered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, false)
	step := f.asking(p, false)
	step.Settle = time.Microsecond
	c := f.consumer(t, Options{}, step)
	f.exec(t, "INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts) VALUES ('tenant', 'k', $1, '', 'open', 1)", step.Name)
	handle(t, c, replayed(act("k")))
	f.exec(t, "UPDATE {schema}.parked SET due_at = due_at - interval '1 min' WHERE due_at < clock_timestamp() + interval '1 min'") // Settle is over
	runParkedOnce(t, c)
	compareStored(t, stored{Parked: "retrying unsettled 1?", Calls: " / 0"}, stored{Parked: f.doubts(t), Calls: p.made()})
	p.checkAsked(t, 1)
}

// Redriving a message in doubt forgets how long it had waited. It waits for its last call in full.
func TestARedrivenDoubtWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, false)
	p.refuse = []string{"never"}
	step := f.asking(p, false)
	step.Settle = time.Microsecond
	c := f.consumer(t, Options{}, step)
	handle(t, c, act("k"))
	f.redrive(t, nil)
	runParkedOnce(t, c)
	compareStored(t, stored{Parked: "retrying unsettled 0?", Calls: " / 0"}, stored{Parked: f.doubts(t), Calls: p.made()})
	f.pass(t)
	runParkedOnce(t, c)
	compareStored(t, stored{Row: "done 1 0", Calls: "pay / 1"}, stored{Row: f.row(t), Calls: p.made()})
}

// A copy that was parked when the database was set back has forgotten its later
// attempts. A step that asks first asks before each; others do for an operator, as the
// runbook has it.
func TestAForgottenSecondAttemptIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, askFirst := range []bool{true, false} {
		t.Run(fmt.Sprint("ask first ", askFirst), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, false)
			p.refuse = []string{"not done"}
			c := f.consumer(t, Options{}, f.asking(p, askFirst))
			handle(t, c, act("k"))
			f.setBack(t, func() { f.finishParked(t, c) })
			if !askFirst {
				f.exec(t, "UPDATE {schema}.parked SET in_doubt = true, reason = 'calling', last_at = now() WHERE state = 'retrying'")
			}
			f.finishParked(t, c)
			compareStored(t, stored{Row: "done 2 0", Calls: "pay / 1"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
		})
	}
}

// The same after the process died in its call: the wait is that for a call, not that for a message.
func TestAQuestionThatFailsLeavesTheWaitForACallUnderWay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, false)
	p.refuse = []string{"not done"}
	step := f.asking(p, false)
	step.Settle = time.Microsecond
	c := f.consumer(t, Options{}, step)
	handle(t, c, act("k"))
	f.exec(t, "UPDATE {schema}.parked SET in_doubt = true, reason = 'calling', last_at = clock_timestamp()")
	p.unheard = 1
	for range 2 {
		f.retryNow(t)
		runParkedOnce(t, c)
	}
	compareStored(t, stored{Parked: "retrying unsettled 2?", Calls: " / 0"}, stored{Parked: f.doubts(t), Calls: p.made()})
}

// What a step asks before each call is believed at once: nothing is what it mostly
// finds.
func TestAskingFirstCostsOneQuestion(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, false)
	p.refuse = []string{"not done"}
	c := f.consumer(t, Options{}, f.asking(p, true))
	var leases []string
	p.arrived = func(string) {
		leases = append(leases, f.texts(t, "SELECT (due_at - last_at > interval '1 min')::text FROM {schema}.parked WHERE reason = 'calling'")...)
	}
	handle(t, c, act("k"))
	f.finishParked(t, c)
	handle(t, c, undo("k"))
	compareStored(t, stored{Row: "compensated 2 1", Calls: "pay, refund / 2"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
	p.checkAsked(t, 3)
	if got, want := strings.Join(leases, " "), "true true true"; got != want {
		t.Errorf("leases with room for a question: %s, want %s", got, want)
	}
}

// Only time settles the doubt that an attempt has left. A redrive of its message does not shorten the wait.
func TestAskingFirstDoesNotHurryADoubt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, false)
	p.refuse = []string{"never"}
	c := f.consumer(t, Options{}, f.asking(p, true))
	handle(t, c, act("k"))
	if got, want := f.doubts(t), "dead terminal 1?"; got != want {
		t.Fatalf("parked %q, want %q", got, want)
	}
	f.redrive(t, nil)
	runParkedOnce(t, c)
	compareStored(t, stored{Row: "retrying 0 0", Parked: "retrying unsettled 0?", Calls: " / 0"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
}

// retryNow makes parked messages due, as an operator's retry does.
func (f *fixture) retryNow(t *testing.T) {
	t.Helper()
	f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp()")
}

// letterID is that of the only parked message.
func (f *fixture) letterID(t *testing.T) (id int64) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), "SELECT id FROM "+f.schema+".parked").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// redrive redrives the only dead letter, after an edit if there is one.
func (f *fixture) redrive(t *testing.T, edit *DeskEdit) {
	t.Helper()
	id := f.letterID(t)
	if edit != nil {
		if err := f.desk(t).Edit(t.Context(), id, *edit); err != nil {
			t.Fatal(err)
		}
	}
	if done, err := f.desk(t).Redrive(t.Context(), id); err != nil || done["run"]+done["waits"]+done["nothing-to-undo"]+done["unread"] != 1 {
		t.Fatalf("redrive %v, %v", done, err)
	}
}

// A replayed effect without a verify function is called again: the provider dedupes by its key.
func TestAReplayedEffectWithoutAVerifyIsCalled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, true)
	step := f.effectStep(p.url, false)
	step.Settle = time.Hour
	c := f.consumer(t, Options{}, step)
	f.setBack(t, func() { handle(t, c, act("k")) })
	handle(t, c, replayed(act("k")))
	compareStored(t, stored{Row: "done 1 0", Calls: "pay / 1"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
	p.checkAsked(t, 0)
	p.refuse = []string{"never, not done"}
	handle(t, c, replayed(act("l")))
	if got, want := f.doubts(t), "dead terminal 1"; got != want {
		t.Errorf("refused, and parked as %q, want %q", got, want)
	}
}

// A replayed copy of a step that has a row is judged by that.
func TestAReplayedCopyOfAStepThatHasARow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, false)
	c := f.consumer(t, Options{}, f.asking(p, false))
	p.loseReply()
	handle(t, c, act("k"), replayed(act("k")))
	compareStored(t, stored{Row: "retrying 1 0", Parked: "retrying failed 1?"}, stored{Row: f.row(t), Parked: f.doubts(t)})
	f.finishParked(t, c)
	handle(t, c, replayed(act("k")), undo("k"), replayed(undo("k")), replayed(act("k")))
	compareStored(t, stored{Row: "compensated 2 1", Calls: "pay, refund / 2"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
	p.checkAsked(t, 1)
}

// The mark goes with the message: where it waits for its action, where it is a dead
// letter, and where that is edited and redriven.
func TestAReplayedMessageStaysOneWhereverItIsKept(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]func(t *testing.T, f *fixture, step Step){
		"behind its action": func(t *testing.T, f *fixture, step Step) {
			f.exec(t, "UPDATE {schema}.inbox SET state = 'retrying'")
			handle(t, f.consumer(t, Options{}, step), replayed(undo("k")))
			f.exec(t, "UPDATE {schema}.inbox SET state = 'done'")
			f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp() - interval '1 day', last_at = last_at - interval '1 day'")
		},
		"as a dead letter": func(t *testing.T, f *fixture, step Step) {
			msg := replayed(undo("k"))
			msg.Metadata.Set(outbox.PropertyContentType, "text/plain")
			handle(t, f.consumer(t, Options{}, step), msg)
			f.redrive(t, &DeskEdit{Remove: []string{outbox.PropertyContentType}})
			f.pass(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, false)
			step := f.asking(p, false)
			c := f.consumer(t, Options{}, step)
			handle(t, c, act("k"))
			f.setBack(t, func() { handle(t, c, undo("k")) })
			keep(t, f, step)
			if n := runParkedOnce(t, c); n != 1 {
				t.Fatalf("%d messages are due: %s", n, f.doubts(t))
			}
			compareStored(t, stored{Row: "compensated 1 1", Calls: "pay, refund / 2"}, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
			p.checkAsked(t, 1)
		})
	}
}
