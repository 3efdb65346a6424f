package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stats describe an outbox. They are read from the database, so that any process
// with a [Relay] sees the same, whichever is active.
type Stats struct {
	Stored  int           // committed, to be published next
	Oldest  time.Duration // age of the oldest of them; 0 if there is none
	Delayed int           // not due yet
	Waiting int           // behind a refused message of their ordering key
	Refused int           // refused by the broker, backing off
	Dead    int           // refused until the attempts were used up; a person is needed

	Log    Log    // how published messages are accounted for
	Holder string // the active relay: host, process, and a random part; empty: there is none
	Epoch  int64  // how often the active relay has changed

	Leaves map[string]int64 // bytes of each table of the log, with indexes

	// OldestWriter is how long the oldest transaction is open that has written
	// anything in this database, and WriterPID its server process. Messages of
	// such a transaction are published when it commits; as long as it is open,
	// the tables that it has written to cannot be emptied.
	OldestWriter time.Duration
	WriterPID    int
}

// Stats reads them. Counting takes as long as there are messages to count.
func (r *Relay) Stats(ctx context.Context) (s Stats, err error) {
	err = pgx.BeginTxFunc(ctx, r.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, r.sql.readRelay).Scan(&s.Epoch, &s.Holder, &s.Log); err != nil {
			return err
		}
		if err := r.countStored(ctx, tx, &s); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, r.sql.countHeld).Scan(&s.Delayed, &s.Waiting, &s.Refused, &s.Dead); err != nil {
			return err
		}
		return r.readSizes(ctx, tx, &s)
	})
	if err != nil {
		return Stats{}, fmt.Errorf("outbox: read stats: %w", err)
	}
	return s, nil
}

func (r *Relay) countStored(ctx context.Context, tx pgx.Tx, s *Stats) error {
	var age float64
	defer func() { s.Oldest = time.Duration(age * float64(time.Second)) }()
	if s.Log == LogTable {
		return tx.QueryRow(ctx, r.sql.countTable).Scan(&s.Stored, &age)
	}
	at, _, err := r.readCursor(ctx, tx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, r.sql.planByIndex); err != nil {
		return err
	}
	return tx.QueryRow(ctx, r.sql.countDifference, at.from.xmaxText(), at.from.xip, at.toText(), at.last).Scan(&s.Stored, &age)
}

func (r *Relay) readSizes(ctx context.Context, tx pgx.Tx, s *Stats) error {
	var sizes []int64
	if err := tx.QueryRow(ctx, r.sql.leafSizes).Scan(&sizes); err != nil {
		return err
	}
	s.Leaves = make(map[string]int64, len(leaves))
	for i, size := range sizes {
		s.Leaves[leaves[i]] = size
	}
	var age float64
	err := tx.QueryRow(ctx, r.sql.oldestWriter).Scan(&age, &s.WriterPID)
	s.OldestWriter = time.Duration(age * float64(time.Second))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// Counters are what one [Relay] has done since it was made.
type Counters struct {
	Active      bool   // it is the active one
	Published   uint64 // messages confirmed and not returned
	Refused     uint64 // refusals
	Dead        uint64 // messages that became dead letters
	Queued      uint64 // messages that were held behind a refused one
	Unavailable uint64 // calls of the Publisher without an answer for some message

	Calls       uint64        // of the Publisher
	CallTime    time.Duration // in them: until every message of the call was confirmed or refused
	SlowestCall time.Duration
}

// Counters reads them without asking the database.
func (r *Relay) Counters() Counters {
	c := &r.counters
	micros := func(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }
	return Counters{
		Active: c.leads.Load(), Published: c.published.Load(), Refused: c.refused.Load(), Dead: c.dead.Load(),
		Queued: c.queued.Load(), Unavailable: c.unavailable.Load(),
		Calls: c.calls.Load(), CallTime: micros(c.callMicros.Load()), SlowestCall: micros(c.slowestCallMicro.Load()),
	}
}
