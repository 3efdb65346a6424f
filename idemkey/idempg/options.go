package idempg

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// The defaults of [Options].
const (
	DefaultGrace           = 10 * time.Second
	DefaultAcquireTimeout  = 2 * time.Second
	DefaultLockTimeout     = 2 * time.Second
	DefaultLookupTimeout   = 2 * time.Second
	DefaultIdleMargin      = 5 * time.Second
	DefaultConnectionCheck = time.Second
	DefaultSweepBatch      = 1000
)

const (
	// maxClaims bounds the race between an insert that finds a record and a
	// read that does not, because it was deleted in between.
	maxClaims = 3

	// claimLockTimeout bounds how long a claim waits for an owner that is just committing.
	claimLockTimeout = 100 * time.Millisecond

	// lookups is how often a lost commit is looked up within LookupTimeout.
	lookups = 3

	// reserved connections are left for those that only read a record.
	reserved = 2
)

// Options configure a [Store]. The zero value works.
type Options struct {
	Schema    string         // of the table; default: sagamill
	Isolation pgx.TxIsoLevel // of the handler's transaction; default: the database's

	// MaxInFlight is how many handlers run at once, each on a connection of
	// its own. Default: the pool's MaxConns less 2, at least 1.
	MaxInFlight    int
	AcquireTimeout time.Duration // wait for a place and for a connection, each; default: 2 s

	Grace         time.Duration // from the claim to the row lock that replaces it; default: 10 s
	LockTimeout   time.Duration // wait for that lock; default: 2 s
	LookupTimeout time.Duration // to find out what became of a commit whose reply was lost; default: 2 s
	IdleMargin    time.Duration // beyond the handler's time, before the server ends an idle transaction; default: 5 s

	// ConnectionCheck is how often the server looks, while it runs a
	// statement, whether this process still lives. It needs PostgreSQL 14 on a
	// system that can tell. Negative: never. Default: 1 s.
	ConnectionCheck time.Duration

	SweepBatch int // rows that one statement of Sweep deletes; default: 1000
}

func (o *Options) setDefaults(maxConns int) {
	o.Schema = cmp.Or(o.Schema, sqlschema.Default)
	o.MaxInFlight = cmp.Or(o.MaxInFlight, max(1, maxConns-reserved))
	o.AcquireTimeout = cmp.Or(o.AcquireTimeout, DefaultAcquireTimeout)
	o.Grace = cmp.Or(o.Grace, DefaultGrace)
	o.LockTimeout = cmp.Or(o.LockTimeout, DefaultLockTimeout)
	o.LookupTimeout = cmp.Or(o.LookupTimeout, DefaultLookupTimeout)
	o.IdleMargin = cmp.Or(o.IdleMargin, DefaultIdleMargin)
	o.ConnectionCheck = cmp.Or(o.ConnectionCheck, DefaultConnectionCheck)
	o.SweepBatch = cmp.Or(o.SweepBatch, DefaultSweepBatch)
}

// check returns an error that names the field.
func (o *Options) check(maxConns int) error {
	if err := sqlschema.Check(o.Schema); err != nil {
		return fmt.Errorf("idempg: Options.Schema: %w", err)
	}
	switch o.Isolation {
	case "", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
	default:
		return fmt.Errorf("idempg: Options.Isolation: %q is not one that protects writes", o.Isolation)
	}
	if o.MaxInFlight < 1 || o.MaxInFlight > maxConns {
		return fmt.Errorf("idempg: Options.MaxInFlight is %d, and must be 1 to the pool's MaxConns, %d", o.MaxInFlight, maxConns)
	}
	if o.SweepBatch < 1 {
		return errors.New("idempg: Options.SweepBatch must be positive")
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"AcquireTimeout", o.AcquireTimeout}, {"Grace", o.Grace}, {"LockTimeout", o.LockTimeout},
		{"LookupTimeout", o.LookupTimeout}, {"IdleMargin", o.IdleMargin},
	} {
		if d.value < time.Millisecond {
			return fmt.Errorf("idempg: Options.%s must be at least a millisecond", d.field)
		}
	}
	return nil
}
