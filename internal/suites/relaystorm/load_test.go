package relaystorm

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/relaytest"
	"github.com/sagamill/sagamill/outbox"
)

// The shape of the load: of so many transactions, one is like this.
const (
	writers      = 6
	earlyIn      = 5 // has its transaction id before it waits for its keys
	savepointIn  = 5 // rolls back to a savepoint with messages behind it
	lingersIn    = 12
	rollsBackIn  = 8
	twoKeysIn    = 4
	cutIn        = 40 // has its COMMIT lost, or the answer to it
	maxPerKey    = 3  // messages
	earlyWait    = 20 * time.Millisecond
	lingerWait   = 200 * time.Millisecond
	databaseAway = 50 * time.Millisecond // pause before a writer tries again
)

// A key counts its versions in a row, whose lock makes its writers take turns.
type key struct{ name, topic string }

// A load is the writers. They know the outcome of each of their transactions, also after faults of the
// server.
type load struct {
	db      *pgxpool.Pool
	cut     map[pgtest.Loss]*pgxpool.Pool // on which each COMMIT meets with this
	out     *outbox.Writer
	schema  string
	history *relaytest.History

	committed atomic.Int64 // messages of the current round
	outcomes  struct{ committed, rolledBack, failed, foundCommitted, foundNot atomic.Int64 }
}

// createTables makes what the writers need besides the outbox.
func (l *load) createTables(ctx context.Context) error {
	_, err := l.db.Exec(ctx, "CREATE TABLE "+l.schema+".counter (key text PRIMARY KEY, version bigint NOT NULL);"+
		"CREATE TABLE "+l.schema+".finished (id uuid PRIMARY KEY, committed boolean NOT NULL)")
	return err
}

// addKeys lets keys be written.
func (l *load) addKeys(ctx context.Context, keys []key) error {
	for _, k := range keys {
		if _, err := l.db.Exec(ctx, "INSERT INTO "+l.schema+".counter VALUES ($1, 0)", k.name); err != nil {
			return err
		}
	}
	return nil
}

// A task is what the writers do at a time.
type task struct {
	seed     uint64
	round    int
	messages int // at least
	keys     []key
	brisk    bool // no transaction lingers
}

// write carries the task out and returns when no transaction is open. It ends
// early with ctx.
func (l *load) write(ctx context.Context, t task) {
	var left atomic.Int64
	left.Store(int64(t.messages))
	var group sync.WaitGroup
	for i := range writers {
		rng := rand.New(rand.NewPCG(t.seed, uint64(i)))
		group.Go(func() {
			for left.Load() > 0 && ctx.Err() == nil {
				left.Add(-l.transact(ctx, t.plan(rng)))
			}
		})
	}
	group.Wait()
}

// A plan is a transaction before it begins.
type plan struct {
	id                                   uuid.UUID
	round                                int
	keys                                 []key // sorted: two transactions never deadlock
	perKey                               int
	early, savepoint, lingers, rollsBack bool
	loss                                 pgtest.Loss
}

func (t task) plan(rng *rand.Rand) plan {
	oneIn := func(n int) bool { return rng.IntN(n) == 0 }
	p := plan{
		id: uuid.New(), round: t.round, perKey: 1 + rng.IntN(maxPerKey),
		early: oneIn(earlyIn), savepoint: oneIn(savepointIn), lingers: oneIn(lingersIn) && !t.brisk, rollsBack: oneIn(rollsBackIn),
	}
	if oneIn(cutIn) {
		p.loss = []pgtest.Loss{pgtest.LoseReply, pgtest.LoseCommit}[rng.IntN(2)]
	}
	p.keys = append(p.keys, t.keys[rng.IntN(len(t.keys))])
	if other := t.keys[rng.IntN(len(t.keys))]; oneIn(twoKeysIn) && other != p.keys[0] {
		p.keys = append(p.keys, other)
	}
	slices.SortFunc(p.keys, func(a, b key) int { return cmp.Compare(a.name, b.name) })
	return p
}

// transact carries p out, notes what became of it and returns how many messages
// it has committed.
func (l *load) transact(ctx context.Context, p plan) int64 {
	w := &written{load: l, plan: p}
	committed, err := w.run(ctx)
	if err != nil {
		l.outcomes.failed.Add(1)
		_ = backoff.Sleep(ctx, databaseAway)
	}
	if !committed {
		l.outcomes.rolledBack.Add(1)
		l.history.Undo(w.messages...)
		return 0
	}
	l.outcomes.committed.Add(1)
	l.history.Commit(w.messages...)
	l.committed.Add(int64(len(w.messages)))
	return int64(len(w.messages))
}

// written is a transaction and the messages that depend on its outcome.
type written struct {
	*load
	plan
	messages []relaytest.Message
}

// run reports whether the transaction has committed. An error says that the
// database was away.
func (w *written) run(ctx context.Context) (committed bool, err error) {
	db := w.db
	if w.loss != pgtest.LoseNothing {
		db = w.cut[w.loss]
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing if it has ended
	if err := w.fill(ctx, tx); err != nil || w.rollsBack {
		return false, err
	}
	if err := tx.Commit(ctx); err != nil {
		return w.lookUp(ctx), nil
	}
	return true, nil
}

func (w *written) fill(ctx context.Context, tx pgx.Tx) error {
	if w.early {
		if _, err := tx.Exec(ctx, "SELECT pg_current_xact_id(), pg_sleep($1)", earlyWait.Seconds()); err != nil {
			return err
		}
	}
	if w.savepoint {
		if err := w.undoPart(ctx, tx); err != nil {
			return err
		}
	}
	messages, err := w.emit(ctx, tx)
	w.messages = messages
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO "+w.schema+".finished VALUES ($1, true)", w.id); err != nil {
		return err
	}
	if w.lingers {
		_, err = tx.Exec(ctx, "SELECT pg_sleep($1)", lingerWait.Seconds())
	}
	return err
}

// undoPart writes messages and rolls them back alone.
func (w *written) undoPart(ctx context.Context, tx pgx.Tx) error {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	messages, err := w.emit(ctx, savepoint)
	w.history.Undo(messages...)
	if err != nil {
		return err
	}
	return savepoint.Rollback(ctx)
}

// emit raises the version of each key and writes a message for each step of it.
// The messages may be stored also if it returns an error.
func (w *written) emit(ctx context.Context, tx pgx.Tx) ([]relaytest.Message, error) {
	var notes []relaytest.Message
	var messages []outbox.Message
	for _, k := range w.keys {
		var last int64
		err := tx.QueryRow(ctx, "UPDATE "+w.schema+".counter SET version = version + $2 WHERE key = $1 RETURNING version", k.name, w.perKey).Scan(&last)
		if err != nil {
			return nil, err
		}
		for version := last - int64(w.perKey) + 1; version <= last; version++ {
			note := relaytest.Message{ID: uuid.Must(uuid.NewV7()).String(), Key: k.name, Topic: k.topic, Version: version, Round: w.round}
			payload, err := json.Marshal(relaytest.Body{Key: note.Key, Version: note.Version})
			if err != nil {
				return nil, err
			}
			notes = append(notes, note)
			messages = append(messages, outbox.Message{
				ID: note.ID, Topic: k.topic, Scope: "storm", Key: k.name, Step: "step", N: fmt.Sprint(version), Payload: payload,
			})
		}
	}
	return notes, w.out.Write(ctx, tx, messages...)
}

// lookUp finds out whether the transaction, whose COMMIT was not answered, has
// committed. Its row is inserted once more: that waits for the transaction, should
// the server still be at it, and keeps it from committing later.
func (w *written) lookUp(ctx context.Context) (committed bool) {
	for ctx.Err() == nil {
		_, err := w.db.Exec(ctx, "INSERT INTO "+w.schema+".finished VALUES ($1, false) ON CONFLICT DO NOTHING", w.id)
		if err == nil {
			err = w.db.QueryRow(ctx, "SELECT committed FROM "+w.schema+".finished WHERE id = $1", w.id).Scan(&committed)
		}
		switch {
		case err == nil && committed:
			w.outcomes.foundCommitted.Add(1)
			return true
		case err == nil:
			w.outcomes.foundNot.Add(1)
			return false
		}
		_ = backoff.Sleep(ctx, databaseAway)
	}
	return false // the test is over: nobody judges this any more
}
