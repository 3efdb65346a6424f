package saga_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A desk is where an operator sits.
type desk struct {
	*place
	n    *operator.Instances
	open map[string]func() // lets a mute participant speak
}

func newDesk(t testing.TB) *desk {
	t.Helper()
	p := newPlace(t)
	n, err := operator.NewInstances(p.db, &operator.Options{Schema: p.schema})
	if err != nil {
		t.Fatal(err)
	}
	return &desk{p, n, map[string]func(){}}
}

// orchestrate runs an orchestrator, which has registered its plans then.
func (d *desk) orchestrate(plans ...saga.Plan) {
	d.t.Helper()
	d.await("the orchestrator is ready", d.place.orchestrate(nil, plans...).Ready)
}

// mute runs participants that put everything off until [desk.open].
func (d *desk) mute(names ...string) {
	d.t.Helper()
	var steps []consumer.Step
	for _, name := range names {
		open := &atomic.Bool{}
		d.open[name] = func() { open.Store(true) }
		s := d.step(name, func(bool) error {
			if open.Load() {
				return nil
			}
			return consumer.RetryAfter(errors.New("closed"), time.Millisecond)
		})
		s.MaxAttempts = 10_000
		steps = append(steps, s)
	}
	d.participate(steps...)
}

// breaking is a participant's step whose compensation fails for good until mended.
func (d *desk) breaking(name string, mended func() bool) consumer.Step {
	return d.step(name, func(undo bool) error {
		if undo && !mended() {
			return consumer.Terminal(errors.New("no such booking"))
		}
		return nil
	})
}

// step is that of booking, whose handlers first ask before.
func (d *desk) step(name string, before func(undo bool) error) consumer.Step {
	note := func(ctx context.Context, tx pgx.Tx, key, what string) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+d.schema+".effect (key, what) VALUES ($1, $2)", key, what)
		return err
	}
	return consumer.Step{
		Name: name,
		Action: saga.On(name+".book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) (answer, error) {
			if err := before(false); err != nil {
				return answer{}, err
			}
			return answer{Number: name + " for " + in.Key}, note(ctx, tx, in.Key, name)
		}),
		Compensation: saga.OnUndo(name+".cancel", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) error {
			if err := before(true); err != nil {
				return err
			}
			return note(ctx, tx, in.Key, "no "+name)
		}),
	}
}

// faulty waits until no orchestrator can continue an instance.
func (d *desk) faulty(key string) {
	d.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); d.get(key).Fault == ""; {
		select {
		case <-tick.C:
		case <-timeout:
			d.t.Fatalf("%s has no fault", key)
		}
	}
}

func (d *desk) get(key string) operator.Timeline {
	d.t.Helper()
	return d.getAt(saga.Address{Key: key})
}

func (d *desk) getAt(at saga.Address) operator.Timeline {
	d.t.Helper()
	t, err := d.n.Get(d.t.Context(), at)
	if err != nil {
		d.t.Fatal(err)
	}
	return t
}

// states are the steps of a timeline with their states.
func states(t operator.Timeline) string {
	var all []string
	for _, s := range t.Steps {
		if s.Number > 0 {
			state := string(s.State)
			if s.Held {
				state = "held"
			}
			all = append(all, s.Name+" "+state)
		}
	}
	return strings.Join(all, ", ")
}

// sees waits until the steps of an instance are in the states that are wanted.
func (d *desk) sees(at saga.Address, want string) operator.Timeline {
	d.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for {
		t, err := d.n.Get(d.t.Context(), at)
		if err == nil && states(t) == want {
			return t
		}
		select {
		case <-tick.C:
		case <-timeout:
			d.t.Fatalf("%s: %s (%v), want %s", at, states(t), err, want)
		}
	}
}

func (d *desk) decide(key string, verb operator.Verb, step string) (operator.Instance, error) {
	d.t.Helper()
	return d.decideAt(saga.Address{Key: key}, operator.Decision{Verb: verb, Step: step})
}

func (d *desk) decideAt(at saga.Address, do operator.Decision) (operator.Instance, error) {
	d.t.Helper()
	do.By, do.Why = "ann", "it is a test"
	return d.n.Decide(d.t.Context(), at, do)
}

// must decides, and refused does so in vain.
func (d *desk) must(key string, verb operator.Verb, step string) {
	d.t.Helper()
	if _, err := d.decide(key, verb, step); err != nil {
		d.t.Fatalf("%s %s: %v", verb, step, err)
	}
}

func (d *desk) refused(key string, verb operator.Verb, step, why string) {
	d.t.Helper()
	before := d.get(key)
	_, err := d.decide(key, verb, step)
	if !errors.Is(err, operator.ErrRefused) || !strings.Contains(err.Error(), why) {
		d.t.Errorf("%s %s: %v, want it refused: %s", verb, step, err, why)
	}
	if after := d.get(key); len(after.Journal) != len(before.Journal) || states(after) != states(before) || after.Status != before.Status {
		d.t.Errorf("%s %s was refused, and has changed %s %s to %s %s", verb, step, before.Status, states(before), after.Status, states(after))
	}
}

func (d *desk) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.db.Exec(d.t.Context(), strings.ReplaceAll(sql, "{schema}", d.schema), args...); err != nil {
		d.t.Fatal(err)
	}
}

// sent waits until so many messages have been stored for a topic.
func (d *desk) sent(topic string, want int) {
	d.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for n := 0; ; {
		if err := d.db.QueryRow(d.t.Context(), "SELECT count(*) FROM "+d.schema+".outbox WHERE topic = $1", topic).Scan(&n); err != nil {
			d.t.Fatal(err)
		}
		if n >= want {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			d.t.Fatalf("%d messages to %s, want %d", n, topic, want)
		}
	}
}

// marked checks which messages for a topic say that they were sent before, and that all have the body of the first.
func (d *desk) marked(topic, want string) {
	d.t.Helper()
	got, bodies := "", 0
	err := d.db.QueryRow(d.t.Context(), "SELECT string_agg((headers ->> $2 IS NOT NULL)::text, ' ' ORDER BY id), count(DISTINCT payload) FROM "+d.schema+".outbox WHERE topic = $1",
		topic, outbox.HeaderReplayed).Scan(&got, &bodies)
	if err != nil || got != want {
		d.t.Errorf("of the messages to %s are marked: %s, want %s (%v)", topic, got, want, err)
	}
	if bodies != 1 {
		d.t.Errorf("the messages to %s have %d bodies, want 1", topic, bodies)
	}
}

// forward is book without a compensation, with attempts.
func forward(name string, attempts int) saga.Step[trip] {
	s := book(name)
	s.Undo = saga.Action[trip]{}
	s.Retry = saga.Retry{Attempts: attempts, Base: time.Millisecond}
	return s
}

// redriveAll redrives the dead letters of the schema.
func (d *desk) redriveAll() {
	d.t.Helper()
	letters, err := operator.NewDeadLetters(d.db, operator.Inbox, &operator.Options{Schema: d.schema})
	if err == nil {
		_, err = letters.Redrive(d.t.Context(), operator.Filter{}, nil)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}
