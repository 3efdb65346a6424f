package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/suites/consumerstorm"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// crowd is how many messages of each sort the tests of the budget have: enough
// that a batch has some of each.
const crowd = 24

// Messages that always fail are in one batch with others that do not. Each of
// the failing ones enters its handler as often as the limit says, neither more
// nor less often, and none of the others is harmed.
func TestTheBudgetIsExactForEveryMessageOfABatch(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		for _, limit := range []int{1, 2, 5} {
			t.Run(fmt.Sprint(name, " ", limit), func(t *testing.T) {
				t.Parallel()
				s := newStage(t, batch)
				s.limit = limit
				s.exhaust(t, everyEnd)
				for key, l := range s.looks(t) {
					want, entries := standing{state: "done", effects: "act 1"}, 0
					switch everyEnd(actionType, key) {
					case fails, panics:
						want, entries = standing{state: "dead", parked: "dead action attempts-exhausted"}, limit
					case gives:
						want, entries = standing{state: "dead", parked: "dead action terminal"}, 1
					}
					if l.standing() != want || entries > 0 && l.entries != entries || l.entries > limit || l.attempts > limit {
						t.Errorf("%s: %+v after %d entries, %d counted; want %+v after %d", key, l.standing(), l.entries, l.attempts, want, entries)
					}
				}
			})
		}
	}
}

// everyEnd is how the handler always ends for a key: as the key says.
func everyEnd(_, key string) callResult {
	end, _, _ := strings.Cut(key, "-")
	return callResult(end)
}

// exhaust brings a crowd of actions of each sort to their end.
func (s *stage) exhaust(t *testing.T, how script) {
	t.Helper()
	var msgs []*message.Message
	for i := range crowd {
		for _, end := range []callResult{succeeds, fails, succeeds, panics, gives} {
			key := fmt.Sprint(end, "-", i)
			msgs = append(msgs, identified(actionType, key, 1))
		}
	}
	s.deliver(t, how, msgs...)
	for range s.limit + 1 {
		s.due(t, how, actionType)
	}
}

// Compensations have a budget of their own, which that of the action does not
// shorten.
func TestTheBudgetOfCompensationsIsExactInBatches(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			undoFails := func(kind, key string) callResult {
				if kind == actionType {
					return succeeds
				}
				return everyEnd(kind, key)
			}
			s.exhaust(t, undoFails)
			var undos []*message.Message
			for key := range s.looks(t) {
				undos = append(undos, identified(undoType, key, 2))
			}
			s.deliver(t, undoFails, undos...)
			for range s.limit + 1 {
				s.due(t, undoFails, undoType)
			}
			for key, l := range s.looks(t) {
				want, entries := standing{state: "compensated", effects: "act 1, undo 2"}, 0
				switch everyEnd("", key) {
				case fails, panics:
					want, entries = standing{"undo-dead", "act 1", "dead compensation attempts-exhausted"}, s.limit
				case gives:
					want, entries = standing{"undo-dead", "act 1", "dead compensation terminal"}, 1
				}
				if l.standing() != want || entries > 0 && l.undos != entries || l.undos > s.limit {
					t.Errorf("%s: %+v after %d entries, want %+v after %d", key, l.standing(), l.undos, want, entries)
				}
			}
		})
	}
}

// A message that kills its process is in the hands of a consumer with others,
// before and behind it, in its lane and in another one. It kills as many
// processes as the limit says and ends as a dead letter; every other message runs.
func TestMessagesBesideAKillerBecomeNoDeadLetters(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		for _, lanes := range []int{1, 4} {
			t.Run(fmt.Sprint(name, " ", lanes, " lanes"), func(t *testing.T) {
				t.Parallel()
				s := newStage(t, batch)
				var msgs []*message.Message
				published := map[string]consumerstorm.Message{}
				for i := range 2 * crowd {
					key := fmt.Sprint("innocent-", i)
					if i == crowd/2 {
						key = "killer"
					}
					msg := identified(actionType, key, 1)
					msgs, published[msg.UUID] = append(msgs, msg), storedMessage(msg)
				}
				deaths := s.bear(t, childConfig{How: succeeds, Batch: batch, Lanes: lanes, Ends: map[string]callResult{"killer": kills}}, msgs)
				if deaths > s.limit {
					t.Errorf("the message killed %d processes, the limit is %d", deaths, s.limit)
				}
				s.settle(t)
				killer := seen(s.looks(t)["killer"])
				if killer.state != "dead" || killer.entries != deaths {
					t.Errorf("the killer is %+v after %d entries and %d deaths", *killer, killer.entries, deaths)
				}
				s.judge(t, published, consumerstorm.Limits{Attempts: s.limit, Drained: true, MayDie: func(p consumerstorm.Parked) bool { return p.Key == "killer" }})
			})
		}
	}
}

// bear starts processes, each in the place of the last one that died, until one
// has dealt with everything, and returns how many died.
func (s *stage) bear(t *testing.T, config childConfig, msgs []*message.Message) (deaths int) {
	t.Helper()
	for range 3 * s.limit {
		c := startChild(t, s, config, msgs...)
		if !c.killed() {
			return deaths
		}
		deaths++
		msgs = c.redelivered(msgs)
	}
	t.Fatalf("%d processes died, and %d messages are left", deaths, len(msgs))
	return deaths
}

// A message that was given back before its handler was entered has spent no
// attempt, or one at the most: the broker says no more than that it was delivered
// before.
func TestAMessageThatOnlyCameBackHasItsAttempts(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			var msgs []*message.Message
			for i := range crowd {
				msg := identified(actionType, fmt.Sprint("fail-", i), 1)
				msg.Metadata.Set("redelivered", "true")
				msgs = append(msgs, msg)
			}
			s.deliver(t, everyEnd, msgs...)
			for range s.limit + 1 {
				s.due(t, everyEnd, actionType)
			}
			for key, l := range s.looks(t) {
				if l.state != "dead" || l.entries > s.limit || l.entries < s.limit-1 {
					t.Errorf("%s: %+v after %d entries, want a dead letter after %d or %d", key, *l, l.entries, s.limit-1, s.limit)
				}
			}
		})
	}
}

// An attempt loses its connection, and so does the COMMIT that notes it: the
// server has it, the consumer does not know. The attempt counts once all the same.
func TestAnAttemptCountsOnceAlsoWhenThatIsNotHeard(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			proxy, pool := pgtest.NewProxy(t)
			behind := *s
			behind.pool = pool
			q := newQueue()
			q.publish(identified(actionType, "k", 1))
			var entered atomic.Bool
			lost := func(ctx context.Context, tx pgx.Tx, in consumer.Message[amount], _ consumer.Emit) error {
				if entered.Swap(true) {
					return errors.New("entered again")
				}
				if err := s.ledger.Enter(ctx, consumerstorm.Message{ID: in.ID, Key: in.Key, Kind: in.Type}); err != nil {
					return err
				}
				proxy.Lose(pgtest.LoseReply)
				_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
				return err
			}
			step := s.step(nil)
			step.Action = consumer.On(stepTopic, lost)
			step.Action.Type = actionType
			stop := behind.run(t, q, step)
			await(t, "the attempt is noted", func() bool { return s.count(t, "SELECT count(*) FROM {schema}.parked") == 1 })
			proxy.Lose(pgtest.LoseNothing)
			q.drained(t)
			stop()
			l := s.looks(t)["k"]
			if got, want := l.exact(), `retrying 1 0 [] ["retrying action failed 1"]`; got != want || l.entries != 1 {
				t.Errorf("after %d entries: %s, want %s", l.entries, got, want)
			}
		})
	}
}

// One of two copies dies in its handler on its first delivery, of which nothing
// is left; the other is handled, fails and is parked, before the broker delivers
// the first again. To count that one too would charge every message whose ack was
// lost after it was parked, which looks the same and is far more common: so a
// second copy may cost one entry over the limit, and no more.
func TestTheDeathOfOneCopyCostsOneEntry(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			msgs := []*message.Message{identified(actionType, "fail-0", 1)}
			c := startChild(t, s, childConfig{How: kills, Batch: batch, Lanes: 1}, msgs...)
			s.deliver(t, everyEnd, msgs...)
			s.deliver(t, everyEnd, c.redelivered(msgs)...)
			for range s.limit + 1 {
				s.due(t, everyEnd, actionType)
			}
			if l := s.looks(t)["fail-0"]; l.state != "dead" || l.entries > s.limit+1 {
				t.Errorf("%+v after %d entries, the limit is %d", *l, l.entries, s.limit)
			}
		})
	}
}

// A compensation was parked behind its action and its ack was lost. The action
// succeeds, and the broker delivers the compensation again to a process that its
// handler would kill. The parked copy is the one that runs: what the copy does not
// know of must not enter the handler.
func TestACompensationThatWaitedIsNotEnteredByItsDelivery(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			undo := identified(undoType, "k", 2)
			s.deliver(t, always(fails), identified(actionType, "k", 1))
			s.deliver(t, always(fails), undo)
			s.due(t, always(succeeds), actionType)

			undo.Metadata.Set(outbox.PropertyRedelivered, "true")
			c := startChild(t, s, childConfig{How: kills, Batch: batch, Lanes: 1}, undo)
			if c.killed() {
				t.Error("the delivery entered the handler")
			}
			for range s.limit + 1 {
				s.due(t, always(fails), undoType)
			}
			if l := s.looks(t)["k"]; l.state != "undo-dead" || l.undos != s.limit {
				t.Errorf("%+v after %d entries, want a dead letter after %d", *l, l.undos, s.limit)
			}
		})
	}
}
