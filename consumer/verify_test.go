package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// A prover believes messages that have a proof, and counts what it was asked.
type prover struct {
	asked  atomic.Int32
	strict atomic.Bool // it believes nothing any more
}

func (p *prover) verify(topic string, msg *message.Message) error {
	p.asked.Add(1)
	if p.strict.Load() || msg.Metadata.Get("x-proof") != proof(topic, msg) {
		return errors.New("there is no proof")
	}
	return nil
}

func proof(topic string, msg *message.Message) string {
	return fmt.Sprint(topic, " ", msg.Metadata.Get(outbox.PropertyType), " ", string(msg.Payload))
}

// proven returns msg as its producer sends it.
func proven(msg *message.Message) *message.Message {
	msg.Metadata.Set("x-proof", proof(msg.Metadata.Get(outbox.PropertyType), msg))
	return msg
}

// verifying returns a fixture whose consumer asks a prover, and what works on its
// dead letters.
func verifying(t *testing.T, steps func(f *fixture) Step) (*letterFixture, *prover) {
	t.Helper()
	f, p := &letterFixture{fixture: newFixture(t)}, &prover{}
	f.c = f.consumer(t, Options{Verify: p.verify}, steps(f.fixture))
	f.letters = f.desk(t)
	return f, p
}

func paying(f *fixture) Step { return f.step(f.effect("paid"), f.effect("refunded")) }

// redriveAll sends every dead letter round, and runs what is due.
func (f *letterFixture) redriveAll(t *testing.T) {
	t.Helper()
	if _, err := f.letters.Redrive(t.Context()); err != nil {
		t.Fatalf("Redrive: %v", err)
	}
	runParkedOnce(t, f.c)
}

// forgeries are messages that are not genuine, each of which tries to be it.
func forgeries(genuine *message.Message) (all []*message.Message) {
	for _, change := range []func(msg *message.Message){
		func(msg *message.Message) { delete(msg.Metadata, "x-proof") },
		func(msg *message.Message) { msg.Payload = []byte(`{"amount":1000}`) },
		func(msg *message.Message) { msg.UUID = "another"; msg.Metadata.Set("x-proof", "") },
		func(msg *message.Message) { msg.Metadata.Set(outbox.PropertyType, "unpay") },
		func(msg *message.Message) { again(msg); msg.Metadata.Set("x-proof", "none") },
		func(msg *message.Message) { delete(msg.Metadata, "x-proof"); delete(msg.Metadata, outbox.HeaderKey) },
		func(msg *message.Message) { delete(msg.Metadata, "x-proof"); msg.Payload = []byte("{") },
	} {
		forged := genuine.Copy()
		change(forged)
		all = append(all, forged)
	}
	return all
}

// However many forged messages come before and after the genuine one, under its id
// and its key too, that one runs once, and each of them is a dead letter as it came.
func TestAForgedMessageBlocksNoOther(t *testing.T) {
	t.Parallel()
	for name, deliver := range map[string]func(t *testing.T, f *letterFixture, msgs ...*message.Message){
		"Handle": func(t *testing.T, f *letterFixture, msgs ...*message.Message) {
			for _, msg := range msgs {
				deliver(t, f, "pay", msg)
			}
		},
		"Run": func(t *testing.T, f *letterFixture, msgs ...*message.Message) {
			f.c.signals.settled.Enable()
			for _, msg := range msgs {
				f.sub.queue("pay") <- msg.Copy()
			}
			stop := start(t, f.c)
			for range msgs {
				f.c.signals.settled.Wait(t)
			}
			stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := verifying(t, paying)
			genuine := proven(act("k"))
			forged := forgeries(genuine)
			deliver(t, f, append(forged, forged...)...)
			if got := f.row(t); got != "" {
				t.Errorf("forged messages have left the row %q", got)
			}
			deliver(t, f, append(append(forged, genuine, genuine.Copy()), forged...)...)
			compareStored(t, stored{Row: "done 1 0", Effects: "paid k 1"}, stored{Row: f.row(t), Effects: f.effects(t)})
			dead := f.texts(t, "SELECT concat_ws(' ', state, kind, scope, key, step, n, reason, error) FROM {schema}.parked")
			for _, got := range dead {
				if want := "dead unknown unverified there is no proof"; got != want {
					t.Errorf("dead letter %q, want %q", got, want)
				}
			}
			if len(dead) != 4*len(forged) {
				t.Errorf("%d dead letters, want %d", len(dead), 4*len(forged))
			}
			kept := f.texts(t, "SELECT DISTINCT convert_from(payload, 'UTF8') || ' ' || convert_from(header_values[array_position(header_names, $1)], 'UTF8') FROM {schema}.parked WHERE message_id = $2",
				[]byte(outbox.HeaderKey), []byte("another"))
			if want := []string{string(genuine.Payload) + " k:process-payment"}; !slices.Equal(kept, want) {
				t.Errorf("kept %q; want it as it came, %q", kept, want)
			}
		})
	}
}

// A step does not answer for a message that is not believed, neither when it comes nor
// when it is redriven: a forged command must not make a saga compensate.
func TestAForgedMessageGetsNoAnswer(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(msg *message.Message){
		"unverified":     func(msg *message.Message) { delete(msg.Metadata, "x-proof"); msg.Payload = []byte("{") },
		"format unknown": func(msg *message.Message) { proven(msg).Metadata.Set(outbox.HeaderFormat, "2") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := verifying(t, func(f *fixture) Step { return answering(paying(f)) })
			msg := act("k")
			change(msg)
			handle(t, f.c, msg)
			f.redriveAll(t)
			f.sendRound(t, ", attempts = 3")
			runParkedOnce(t, f.c)
			if got := f.emitted(t, "answer"); len(got) != 0 {
				t.Errorf("answered %q", got)
			}
			if got := f.row(t); got != "" {
				t.Errorf("row %q, want none", got)
			}
		})
	}
}

// What was refused is verified again when it is redriven, and when it is planned: an
// edit does not make it genuine, and neither does having ended the process, but a
// verifier that has learned does.
func TestARedrivenForgeryIsVerifiedAgain(t *testing.T) {
	t.Parallel()
	f, p := verifying(t, paying)
	p.strict.Store(true)
	handle(t, f.c, proven(act("k")))
	compare := func(want stored) {
		t.Helper()
		compareStored(t, want, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
	}
	if got, err := f.letters.Preview(t.Context(), nil); err != nil || !slices.Equal(got, []string{"unread"}) { // it may be believed by now
		t.Errorf("previewed without the step: %q, %v, want unread", got, err)
	}
	f.redriveAll(t)
	compare(stored{Parked: "dead unknown unverified 0"})
	f.sendRound(t, ", attempts = 3")
	runParkedOnce(t, f.c)
	compare(stored{Parked: "dead unknown unverified 3"})
	if err := f.letters.Edit(t.Context(), 1, DeskEdit{Set: map[string]string{"x-own": "1"}}); err != nil {
		t.Fatalf("Edit: %v", err)
	}
	f.redriveAll(t)
	compare(stored{Parked: "dead unknown unverified 0"})
	if got, err := f.letters.Preview(t.Context(), f.c); err != nil || !slices.Equal(got, []string{"undecodable"}) {
		t.Errorf("previewed with the step: %q, %v, want undecodable", got, err)
	}
	p.strict.Store(false)
	f.redriveAll(t)
	compare(stored{Row: "done 1 0", Effects: "paid k 1"})
}

// What was verified when it came runs from the database without being verified again:
// its key may be gone by then. So does what an operator has edited.
func TestAMessageIsVerifiedOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		arrive func(msg *message.Message)
		edit   *DeskEdit
		want   stored
	}{
		"parked":     {func(msg *message.Message) {}, nil, stored{Row: "done 2 0", Effects: "paid k 1"}},
		"edited":     {func(msg *message.Message) {}, &DeskEdit{Payload: []byte(`{"amount":9}`)}, stored{Row: "done 1 0", Effects: "paid k 9"}},
		"unreadable": {func(msg *message.Message) { msg.Payload = []byte("{") }, &DeskEdit{Payload: []byte(`{"amount":9}`)}, stored{Row: "done 2 0", Effects: "paid k 9"}},
		"no key": {func(msg *message.Message) { delete(msg.Metadata, outbox.HeaderKey) },
			&DeskEdit{Set: map[string]string{outbox.HeaderKey: "k:process-payment"}}, stored{Row: "done 2 0", Effects: "paid k 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, p := verifying(t, func(f *fixture) Step { return f.step(f.failing(1, "paid", new(atomic.Int32)), nil) })
			msg := act("k")
			tt.arrive(msg)
			deliver(t, f, "pay", proven(msg))
			p.strict.Store(true)
			if tt.edit != nil {
				if _, err := f.letters.Bury(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				if err := f.letters.Edit(t.Context(), 1, *tt.edit); err != nil {
					t.Fatal(err)
				}
				f.redriveAll(t)
			}
			for runParkedOnce(t, f.c) > 0 {
			}
			compareStored(t, tt.want, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
			if n := p.asked.Load(); n != 1 {
				t.Errorf("verified %d times, want once", n)
			}
		})
	}
}

// A verifier that panics refuses the message, and does not end the process.
func TestAVerifierThatPanics(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{Verify: func(string, *message.Message) error { panic("no keys") }}, paying(f))
	handle(t, c, act("k"))
	got := f.texts(t, "SELECT concat_ws(' ', reason, error, stack LIKE '%TestAVerifierThatPanics%') FROM {schema}.parked")
	if len(got) != 1 || !strings.HasPrefix(got[0], "unverified ") || !strings.HasSuffix(got[0], "no keys t") {
		t.Errorf("parked %q, want the panic and its stack", got)
	}
}

// A genuine message that is repeated is absorbed by the inbox.
func TestARepeatedGenuineMessageIsADuplicate(t *testing.T) {
	t.Parallel()
	f, _ := verifying(t, paying)
	msg := proven(act("k"))
	for range 5 {
		handle(t, f.c, msg.Copy())
	}
	compareStored(t, stored{Row: "done 1 0", Effects: "paid k 1"}, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
}

// The handler of a batch is not entered for the forged messages in it.
func TestForgedMessagesOfABatch(t *testing.T) {
	t.Parallel()
	f, p := verifying(t, func(f *fixture) Step {
		work := f.effect("paid")
		return f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
			if strings.HasPrefix(in.Key, "forged") {
				t.Errorf("handler entered for %s", in.Key)
			}
			return work(ctx, tx, in, emit)
		}, nil)
	})
	f.c.signals.settled.Enable()
	const pairs = 20
	for i := range pairs {
		f.sub.queue("pay") <- act(fmt.Sprint("forged", i))
		f.sub.queue("pay") <- proven(act(fmt.Sprint("k", i)))
	}
	stop := start(t, f.c)
	for range 2 * pairs {
		f.c.signals.settled.Wait(t)
	}
	stop()
	rows, letters := f.texts(t, "SELECT key FROM {schema}.inbox WHERE state = 'done'"), f.texts(t, "SELECT reason FROM {schema}.parked")
	if len(rows) != pairs || len(letters) != pairs || p.asked.Load() != 2*pairs {
		t.Errorf("%d rows, %d dead letters, asked %d times; want %d, %d and %d", len(rows), len(letters), p.asked.Load(), pairs, pairs, 2*pairs)
	}
}

// An older reader runs what is of its own format and keeps a message of the next one,
// however often it is redriven; a newer one, on the same tables, runs both.
func TestANewerReaderRunsWhatAnOlderOneKept(t *testing.T) {
	t.Parallel()
	older, _ := verifying(t, paying)
	newer := &letterFixture{fixture: older.fixture, letters: older.letters, c: older.consumer(t, older.c.opts, paying(older.fixture))}
	newer.c.receiver.formats = []string{"1", "2"}
	of := func(format, key string) *message.Message {
		msg := act(key)
		msg.Metadata.Set(outbox.HeaderFormat, format)
		return proven(msg)
	}
	deliver(t, older, "pay", of("1", "first"))
	deliver(t, older, "pay", of("2", "second"))
	for range 2 {
		compareStored(t, stored{Effects: "paid first 1", Parked: "dead unknown format-unknown 0"}, stored{Effects: older.effects(t), Parked: older.parked(t)})
		older.redriveAll(t)
	}
	newer.redriveAll(t)
	deliver(t, newer, "pay", of("1", "third"))
	deliver(t, newer, "pay", of("2", "fourth"))
	compareStored(t, stored{Effects: "paid first 1, paid second 1, paid third 1, paid fourth 1"}, stored{Effects: newer.effects(t), Parked: newer.parked(t)})
}

// What cannot be verified now is neither believed nor refused: it goes back, or is
// verified again where it is.
func TestWhatCannotBeVerifiedYet(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var away atomic.Bool
	asked := make(chan bool, 100)
	c := f.consumer(t, Options{Verify: func(string, *message.Message) error {
		asked <- away.Load()
		if away.Load() {
			return fmt.Errorf("keys: %w", ErrVerifyLater)
		}
		return nil
	}}, paying(f))
	away.Store(true)
	if err := c.Handle(t.Context(), "pay", act("k")); !errors.Is(err, ErrVerifyLater) {
		t.Errorf("Handle = %v, want an ErrVerifyLater", err)
	}
	c.signals.settled.Enable()
	f.sub.queue("pay") <- act("k")
	stop := start(t, c)
	<-asked // by Handle
	<-asked // by the consumer, which asks again
	if rows, letters := f.texts(t, "SELECT state FROM {schema}.inbox"), f.texts(t, "SELECT reason FROM {schema}.parked"); len(rows)+len(letters) > 0 {
		t.Errorf("inbox %q, parked %q; want nothing decided", rows, letters)
	}
	away.Store(false)
	c.signals.settled.Wait(t)
	stop()
	compareStored(t, stored{Row: "done 1 0", Effects: "paid k 1"}, stored{Row: f.row(t), Effects: f.effects(t)})
}

// A redriven forgery that cannot be verified now stays what it is: a person has sent it
// round, and may do so again.
func TestARedrivenMessageThatCannotBeVerifiedYet(t *testing.T) {
	t.Parallel()
	f := &letterFixture{fixture: newFixture(t)}
	result := errors.New("there is no proof")
	f.c = f.consumer(t, Options{Verify: func(string, *message.Message) error { return result }}, paying(f.fixture))
	f.letters = f.desk(t)
	handle(t, f.c, act("k"))
	result = ErrVerifyLater
	f.redriveAll(t)
	if got := strings.Join(f.texts(t, "SELECT concat_ws(' ', state, reason, error) FROM {schema}.parked"), "; "); got != "dead unverified "+ErrVerifyLater.Error() {
		t.Errorf("parked %q, want it dead again", got)
	}
	result = nil
	f.redriveAll(t)
	if got := f.row(t); !strings.HasPrefix(got, "done") {
		t.Errorf("verified, it is %q, want done", got)
	}
}

// Of one batch, what cannot be verified now is asked about again once the rest is settled.
func TestWhatCannotBeVerifiedYetWaitsBehindItsBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const unsure = 20
	entered, release := make(chan bool), make(chan bool)
	var asked atomic.Int32
	c := f.consumer(t, Options{Lanes: 1, Verify: func(_ string, msg *message.Message) error {
		switch msg.Metadata.Get("x-own") {
		case "first":
			entered <- true
			<-release
		case "unsure":
			asked.Add(1)
			return ErrVerifyLater
		}
		return nil
	}}, paying(f))
	c.signals.settled.Enable()
	stop := start(t, c)
	send := func(key, own string) {
		msg := act(key)
		msg.Metadata.Set("x-own", own)
		f.sub.queue("pay") <- msg
	}
	send("first", "first")
	<-entered
	for i := range unsure {
		send(fmt.Sprint("unsure", i), "unsure")
	}
	send("good", "")
	send("last", "") // it is taken from the queue when all before it are on the board
	close(release)
	for c.signals.settled.Wait(t); len(f.texts(t, "SELECT key FROM {schema}.inbox WHERE key = 'good'")) == 0; {
		c.signals.settled.Wait(t)
	}
	if n := asked.Load(); n > 2*unsure {
		t.Errorf("a genuine message had to wait for %d questions, want about %d", n, unsure)
	}
	stop()
}

// A later message of the same saga does not overtake what cannot be verified yet: of two that
// say different things under one identity, the first counts.
func TestWhatCannotBeVerifiedYetKeepsItsPlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	entered, release := make(chan bool), make(chan bool)
	var asked atomic.Int32
	c := f.consumer(t, Options{Lanes: 1, Verify: func(_ string, msg *message.Message) error {
		switch own := msg.Metadata.Get("x-own"); {
		case own == "gate":
			entered <- true
			<-release
		case own == "unsure" && asked.Add(1) <= 20:
			return ErrVerifyLater
		}
		return nil
	}}, paying(f))
	c.signals.settled.Enable()
	stop := start(t, c)
	gate := act("gate")
	gate.Metadata.Set("x-own", "gate")
	f.sub.queue("pay") <- gate
	<-entered
	for i := range 20 {
		key := fmt.Sprint("k", i)
		first := act(key)
		first.Metadata.Set("x-own", "unsure")
		f.sub.queue("pay") <- first
		f.sub.queue("pay") <- newMessage("pay", key, payment{7})
	}
	close(release)
	for range 41 {
		c.signals.settled.Wait(t)
	}
	stop()
	if got := f.texts(t, "SELECT what FROM {schema}.effect WHERE what NOT LIKE '% 1'"); len(got) > 0 {
		t.Errorf("effects %q of messages that have overtaken others", got)
	}
}
