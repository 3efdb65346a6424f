package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
)

// A saga is followed from place to place, to its end.
func TestWhySaysWhereASagaWaits(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	f.start("k")
	f.why("k", "saga trip, version 1, acme/k in schema trips: running, started at 20")
	f.why("k", "step flight: command flight.reserve is not published yet (outbox of schema trips, stored 20")
	f.why("k", "); no relay is active; its deadline passes at 20")

	f.post.refuse("flight.reserve")
	f.relay(f.home)
	f.why("k", "step flight: command flight.reserve was refused by the broker")
	f.why("k", "no route; again at 20")
	f.post.refuse("")
	f.why("k", "step flight: published, written at 20")
	f.why("k", "Z, topic flight.reserve; no schema in this database has recorded it: it waits in a queue, is being handled, or was lost with its queue; sagamill saga retry k -schema trips -step flight -why \"…\" sends it again")

	f.answer(func() (any, error) { return nil, errFull })
	f.deliver("flight.reserve")
	f.why("k", "step flight: parked until 20")
	f.why("k", "after 1 attempt of step reserve-flight#1.1 in schema flights: failed: it is full; its deadline")
	f.answer(func() (any, error) { return nil, consumer.Terminal(errFull) })
	f.command(0, "dead", "retry", "-all", "-yes", "-key", "k", "-schema", f.flights)
	f.why("k", "step flight: dead letter 1 of step reserve-flight#1.1 in schema flights: terminal: it is full; sagamill dead show -schema flights -id 1; once the cause is fixed: sagamill dead redrive -schema flights -id 1; its deadline")

	f.answer(func() (any, error) { return []int{1}, nil })
	letters, err := operator.NewDeadLetters(f.db, operator.Inbox, &operator.Options{Schema: f.flights})
	if err == nil {
		_, err = letters.Redrive(t.Context(), operator.Filter{IDs: []int64{1}}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.why("k", "its reply saga.reply is not published yet (outbox of schema flights, stored 20")
	f.relay(f.flights)
	f.why("k", "its reply is published, and no orchestrator of schema trips has recorded it: it waits in a queue")
	f.deliver("saga.trip")
	f.why("k", "step flight: its reply is dead letter 1 of step saga-trip#1.1.d in schema trips: terminal: ")

	f.command(0, "saga", "skip", "k", "-step", "flight", "-result", `{"item":"!"}`, "-by", "ann", "-why", "the reply is broken")
	f.why("k", "step hotel: published, ")
	f.why("k", "; the saga has no use for it any more, for step flight is done: sagamill dead discard -schema trips -id 1\n")
	f.command(0, "saga", "pause", "k", "-by", "ann", "-why", "the hotel calls")
	f.why("k", "paused by ann at 20")
	f.why("k", " because: the hotel calls; sagamill saga resume goes on")
	f.why("k", ", does not pass while the saga is paused")
	f.command(0, "saga", "cancel", "k", "-by", "ann", "-why", "no hotel")
	out := f.why("k", "compensation of step hotel: published, ")
	if strings.Contains(out, "\nstep flight") { // it is done
		t.Errorf("why says\n%s", out)
	}
	broken := func() (any, error) { return nil, consumer.Terminal(errors.New("no such flight")) }
	f.undo.Store(&broken)
	f.command(0, "saga", "skip", "k", "-step", "hotel", "-by", "ann", "-why", "there is none")
	f.deliver("flight.cancel")
	f.why("k", "compensation of step flight: dead letter 2 of step reserve-flight#1.1 in schema flights: terminal: no such flight")
	mended := func() (any, error) { return nil, nil }
	f.undo.Store(&mended)
	if _, err := letters.Redrive(t.Context(), operator.Filter{IDs: []int64{2}}, nil); err != nil {
		t.Fatal(err)
	}
	f.deliver("saga.trip")
	out = f.why("k", "saga trip, version 1, acme/k in schema trips: compensated, started at 20")
	if strings.Contains(out, "deadline") || strings.Contains(out, "awaited") {
		t.Errorf("it has ended, and waits:\n%s", out)
	}
}

func TestWhySaysWhyASagaIsStuck(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	f.relay(f.home)
	f.start("k")
	f.deliver("flight.reserve")
	f.exec("UPDATE {home}.saga SET state = '[]', due_at = clock_timestamp()")
	f.why("k", "in schema trips: stuck, started at 20")
	f.why("k", "stuck: orchestrators have given it up: does not fit the definition")
	f.exec(`UPDATE {home}.saga SET state = '{}'`)
	f.command(0, "saga", "retry", "k", "-why", "mended", "-by", "ann")
	f.why("k", "its reply saga.reply is not published yet (outbox of schema flights")

	f.exec(`UPDATE {home}.saga SET progress = replace(progress, '"state":"running"', '"state":"stuck","doubt":true,"reason":"no reply for 24h0m0s"'), status = 'stuck',
		reason = 'step flight: no reply for 24h0m0s', due_at = NULL`)
	f.why("k", "stuck: step flight: no reply for 24h0m0s; what it has done is not known; handled at 20")
	f.why("k", "a person decides: sagamill saga retry, skip or reject")
	f.exec("UPDATE {home}.saga SET due_at = clock_timestamp() - interval '1 h', name = 'gone', status = 'running'")
	f.why("k", "no orchestrator has registered this version in the schema: run one that knows it: gone, version 1")
	f.why("k", "an orchestrator of schema trips is to look at it, since 20")
}

// Without an instance there are the inboxes, the parked messages and the outboxes.
func TestWhyOfAChoreographedSaga(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	f.relay(f.home)
	f.start("k")
	f.deliver("flight.reserve")
	f.relay(f.flights)
	f.why("k", "its reply is published")
	f.exec("DELETE FROM {home}.saga")
	f.why("k", "message saga.reply for step flight, written at 20")
	out := f.why("k", "known: step reserve-flight#1.1 in schema flights is done since 20")
	if strings.Contains(out, "saga trip") {
		t.Errorf("why says\n%s", out)
	}
	f.answer(func() (any, error) { return nil, errFull })
	f.exec("DELETE FROM {flights}.inbox")
	f.start("k")
	f.deliver("flight.reserve")
	f.exec("DELETE FROM {home}.saga")
	f.why("k", "parked until 20")
	f.start("other")
	f.why("other", "step flight: published, ")
	f.deliver("flight.reserve")
	f.exec("DELETE FROM {home}.saga")
	if out := f.why("other", "parked until 20"); strings.Contains(out, "has recorded it") {
		t.Errorf("why says of a parked message that it is lost:\n%s", out)
	}

	var got operator.Finding
	first, _, _ := strings.Cut(f.command(0, "why", "k", "-json", "-schema", f.flights), "\n")
	if err := json.Unmarshal([]byte(first), &got); err != nil || got.What != "parked" || got.Step != "reserve-flight" || got.ID == 0 || got.Until == "" {
		t.Errorf("%v: %s", err, first)
	}
	for args, want := range map[string]string{
		"why none":             "nothing is known of none in 1 schema",
		"why k:reserve-flight": "is it -key k?",
		"why":                  "say which saga",
		"why k more":           `"more" is not a flag`,
		"why k -schema nobody": `schema "nobody" has no tables of sagamill`,
	} {
		if out := f.command(1, strings.Fields(args)...); !strings.Contains(out, want) {
			t.Errorf("%s: %s, want %s", args, out, want)
		}
	}
	f.exec("INSERT INTO {home}.inbox (scope, key, step, n, state, attempts) VALUES ('globex', 'k', 'pay', '', 'open', 1), ('acme', 'k2', 'pay', '', 'open', 2)")
	if out := f.command(1, "why", "k"); !strings.Contains(out, "say which with -scope: acme globex") {
		t.Errorf("why of two scopes: %s", out)
	}
	if out := f.command(0, "why", "k2", "-scope", "acme"); !strings.Contains(out, "known: step pay in schema") {
		t.Errorf("why of an attempt that runs: %s", out)
	}
}
