package consumer_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/suites/consumerstorm"
	"github.com/sagamill/sagamill/outbox"
)

var (
	flagModelRounds = flag.Int("model.rounds", 12, "rounds of the property test of package consumer")
	flagModelSeed   = flag.Uint64("model.seed", 0, "its seed; 0 means a new one")
)

const (
	modelKeys     = 48 // of one test
	modelArrivals = 3  // of one key in one round, at most
)

// A modelRound is what happens to every key at once: messages come, or what is
// parked is due.
type modelRound struct {
	arrivals map[string][]specArrival
	due      string // the kind; "" for messages
	ends     map[string]callResult
}

func (r modelRound) how(kind, key string) callResult { return r.ends[kind+key] }

// A generator draws rounds. What it draws depends on its seed alone, and on the
// states of the keys, so that a redelivery is of something that was delivered.
type generator struct {
	*rand.Rand
	keys  []string
	specs map[string]*spec
}

func newGenerator(t *testing.T, limit int) *generator {
	t.Helper()
	seed := *flagModelSeed
	for seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-model.seed=%d", seed)
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), specs: map[string]*spec{}}
	for i := range modelKeys {
		key := fmt.Sprint("k", i)
		g.keys = append(g.keys, key)
		g.specs[key] = newSpec(limit)
	}
	return g
}

// round draws a round. Both kinds of a key end alike for the whole round, since a
// batch that fails may enter the same handler again.
func (g *generator) round() modelRound {
	r := modelRound{arrivals: map[string][]specArrival{}, ends: map[string]callResult{}}
	switch g.IntN(4) {
	case 0:
		r.due = actionType
	case 1:
		r.due = undoType
	}
	for _, key := range g.keys {
		for _, kind := range []string{actionType, undoType} {
			r.ends[kind+key] = g.end()
		}
		for range g.IntN(modelArrivals + 1) {
			if r.due == "" {
				r.arrivals[key] = append(r.arrivals[key], g.arrival(r, key))
			}
		}
	}
	return r
}

func (g *generator) end() callResult {
	ends := []callResult{succeeds, succeeds, succeeds, succeeds, fails, fails, panics, gives}
	return ends[g.IntN(len(ends))]
}

func (g *generator) arrival(r modelRound, key string) specArrival {
	a := specArrival{kind: actionType, amount: 1}
	if g.IntN(3) == 0 {
		a = specArrival{kind: undoType, amount: 2}
	}
	if g.IntN(8) == 0 {
		a.amount += 7 // another payload
	}
	a.end = r.how(a.kind, key)
	return a
}

func (a specArrival) message(key string) *message.Message {
	msg := identified(a.kind, key, a.amount)
	if a.redelivered {
		msg.Metadata.Set(outbox.PropertyRedelivered, "true")
	}
	return msg
}

// burst returns the messages of a round, those of each key in their order.
func (g *generator) burst(r modelRound) (msgs []*message.Message) {
	for i := range modelArrivals {
		for _, key := range g.keys {
			if i < len(r.arrivals[key]) {
				msgs = append(msgs, r.arrivals[key][i].message(key))
			}
		}
	}
	return msgs
}

// Random messages, duplicates, other payloads and failures come to a consumer in
// bursts, several of one key in each. After each burst it has made of every key
// what the specification makes of it, one message after the other.
func TestAConsumerDoesWhatTheSpecificationSays(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			g := newGenerator(t, s.limit)
			for i := range *flagModelRounds {
				r := g.round()
				before := map[string]string{}
				for key, spec := range g.specs {
					before[key] = spec.String()
					for j, a := range r.arrivals[key] {
						// A redelivery that would be run counts for a death before it.
						a.redelivered = spec.state != "absent" && (spec.state != "done" || a.kind == actionType) && g.IntN(3) == 0
						r.arrivals[key][j] = a
						spec.arrive(a)
					}
					spec.due(r.due, r.how(r.due, key))
				}
				if r.due == "" {
					s.deliver(t, r.how, g.burst(r)...)
				} else {
					s.due(t, r.how, r.due)
				}
				got := s.looks(t)
				for key, spec := range g.specs {
					if l := seen(got[key]); !spec.matches(l, batch != 1) || l.effects != nil && l.attempts != l.entries {
						t.Errorf("round %d, %s: was %s; %+v, due %q; handlers end %s, %s;\n got %s after %d entries\nwant %s", i, key, before[key], r.arrivals[key], r.due,
							r.how(actionType, key), r.how(undoType, key), l.exact(), l.entries, spec)
					}
				}
				if t.Failed() {
					t.FailNow()
				}
			}
		})
	}
}

// The same with two consumers at once: what it comes to depends on who is first,
// but it is sound, and it is at rest when everything that is parked has run.
func TestTwoConsumersKeepTheInvariants(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			g := newGenerator(t, s.limit)
			published := map[string]consumerstorm.Message{}
			for range *flagModelRounds {
				r := g.round()
				msgs := g.burst(r)
				for _, msg := range msgs {
					published[msg.UUID] = storedMessage(msg)
					msg.Metadata.Set(outbox.PropertyRedelivered, []string{"", "true"}[g.IntN(2)])
				}
				s.race(t, r, msgs)
			}
			s.settle(t)
			s.judge(t, published, consumerstorm.Limits{Attempts: s.limit, Drained: true, MayDie: func(consumerstorm.Parked) bool { return true }})
		})
	}
}

func storedMessage(msg *message.Message) consumerstorm.Message {
	kind, rest := msg.Metadata.Get(outbox.PropertyType), msg.Metadata.Get(outbox.HeaderKey)
	return consumerstorm.Message{ID: msg.UUID, Key: rest[:len(rest)-len(":pay")], Kind: kind, Payload: msg.Payload}
}

// race gives every message of the round to two consumers at once, while what is
// parked runs too.
func (s *stage) race(t *testing.T, r modelRound, msgs []*message.Message) {
	t.Helper()
	var queues []*queue
	var stops []func()
	for i := range 2 {
		q := newQueue()
		if i == 1 {
			slices.Reverse(msgs)
		}
		q.publish(msgs...)
		queues, stops = append(queues, q), append(stops, s.run(t, q, s.step(r.how)))
	}
	s.makeDue(t, actionType)
	s.makeDue(t, undoType)
	for i, stop := range stops {
		queues[i].drained(t)
		stop()
	}
}

// judge fails the test if what is left is not sound.
func (s *stage) judge(t *testing.T, published map[string]consumerstorm.Message, limits consumerstorm.Limits) {
	t.Helper()
	var all []consumerstorm.Message
	for _, m := range published {
		all = append(all, m)
	}
	e, err := s.ledger.Read(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range e.Check(limits) {
		t.Error(wrong)
	}
}
