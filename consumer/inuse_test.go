package consumer

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

// A call of a handler that still runs when the handler has returned, or rows that it has left open, meet neither COMMIT nor
// ROLLBACK on its connection (go test -race finds that), nor the next handler of a batch. The connection ends, and the
// attempt is a failure that says why.
func TestACallThatOutlastsItsHandler(t *testing.T) {
	t.Parallel()
	for _, batched := range []bool{false, true} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("batched %t, fails %t", batched, fails), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				entered, ended := 0, make(chan error, 1)
				pay := f.effect("paid")
				c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
					if entered++; in.Key != "b" || entered > 2 {
						return pay(ctx, tx, in, emit)
					}
					sent := make(chan struct{})
					go func() {
						close(sent)
						_, err := tx.Exec(context.WithoutCancel(ctx), "SELECT pg_sleep(600)")
						ended <- err
					}()
					<-sent
					untilSleeping(t, f)
					if fails {
						return fmt.Errorf("no")
					}
					return nil
				}, nil))
				msgs := []*message.Message{act("a"), act("b"), act("c")}
				if batched {
					handleBatch(t, c, msgs...)
				} else {
					handle(t, c, msgs...)
				}
				if err := <-ended; err == nil {
					t.Error("the call that outlasted its handler has succeeded")
				}
				for runParkedOnce(t, c) == 0 {
				}
				want := "[a1done b2done c1done]"
				if batched { // its messages were tried one by one: a was entered before
					want = "[a2done b2done c1done]"
				}
				attempts := f.texts(t, "SELECT key || attempts || state FROM {schema}.inbox ORDER BY key")
				if got := f.effects(t); got != "paid a 1, paid c 1, paid b 1" || fmt.Sprint(attempts) != want {
					t.Errorf("effects %q, inbox %v, want %s", got, attempts, want)
				}
			})
		}
	}
}

func untilSleeping(t *testing.T, f *fixture) {
	t.Helper()
	for len(f.texts(t, `SELECT '' FROM pg_stat_activity a JOIN pg_locks l USING (pid) JOIN pg_class c ON c.oid = l.relation
		WHERE c.relnamespace = '{schema}'::regnamespace AND a.query LIKE 'SELECT pg_sleep%' AND a.state = 'active'`)) == 0 {
	}
}
