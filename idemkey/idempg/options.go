package idempg

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/txguard"
)

// The defaults of [Options].
const (
	DefaultGrace           = 10 * time.Second
	DefaultAcquireTimeout  = 2 * time.Second
	DefaultLookupTimeout   = 2 * time.Second
	DefaultIdleMargin      = 5 * time.Second
	DefaultConnectionCheck = txguard.DefaultConnectionCheck
	DefaultSweepBatch      = 1000
)

const (
	// maxClaims bounds the race between an insert that finds a record and a
	// read that does not, because it was deleted in between.
	maxClaims = 3

	// lookups is how often a lost commit is looked up within LookupTimeout.
	lookups = 3

	// openEarly is the part of the grace after which a transaction is opened for a
	// handler that has sent no statement yet.
	openEarly = 4

	// How often the transaction of a lost connection is looked at again, and after which pause. The last is the
	// longest pause of a release, which looks until its time is over.
	freeTries    = 20
	freePause    = 10 * time.Millisecond
	maxFreePause = 200 * time.Millisecond

	// reserved connections are left for those that only read a record.
	reserved = 2
)

// A ClaimMode is a way to keep others from running the same request.
type ClaimMode uint8

const (
	// ClaimLeased claims a key by a record that is committed before the handler
	// runs. A second request is compared with the first while that still runs,
	// attempts are counted, and a failed key stays bound to its request.
	ClaimLeased ClaimMode = iota

	// ClaimInline claims it by an advisory lock of the business transaction,
	// and writes the record in the end: one transaction, one durable write.
	// While a request runs, every other one with its key is in flight, whatever
	// its body; a failed one leaves nothing. It needs READ COMMITTED. Stores of both
	// modes may use one table at the same time, as while a deploy changes the mode: one
	// of two owners wins then, and an inline one may wait in the end for the other's handler.
	ClaimInline
)

// Options configure a [Store]. The zero value works.
type Options struct {
	Schema    string         // PostgreSQL schema of the table; default: sagamill
	Isolation pgx.TxIsoLevel // isolation level of the handler's transaction; default: the default isolation level of the database; with ClaimInline, READ COMMITTED
	ClaimMode ClaimMode      // how the store prevents two simultaneous runs of the same request; default: ClaimLeased

	// MaxInFlight is how many handlers may run at once, each on one connection.
	// Default: the pool's MaxConns minus 2, at least 1.
	MaxInFlight    int
	AcquireTimeout time.Duration // longest wait of a request while MaxInFlight handlers are running; also the longest wait for a connection; default: 2 s

	// The store locks the row of a claim at the handler's first statement, or after a quarter of Grace; if the process
	// dies before this lock, a retry can take over a claim that is older than Grace. Default: 10 s.
	Grace         time.Duration
	LookupTimeout time.Duration // longest time for finding out whether a transaction has committed, if the reply to COMMIT was lost; default: 2 s
	IdleMargin    time.Duration // PostgreSQL ends the transaction of a handler if it is idle for longer than the sum of ExecTimeout and IdleMargin; default: 5 s

	// ConnectionCheck is how often PostgreSQL checks, while it runs a statement, whether this process is still
	// connected. A server on Windows, or a PostgreSQL 14 that is not on Linux, cannot check: each request then fails
	// until the option is negative, which means never. Default: 1 s, in whole milliseconds.
	ConnectionCheck time.Duration

	// MaxPerScope is how many unexpired records one scope may have in one namespace. Over it new keys
	// are refused with [idemkey.ErrCapacity], and stored ones still replayed. Under ClaimInline, requests
	// that run at the same time may exceed it by their number. Default: no quota.
	MaxPerScope int

	SweepBatch int // largest number of rows that one statement of Sweep deletes; default: 1000
}

func (o *Options) setDefaults(maxConns int) {
	o.Schema = cmp.Or(o.Schema, sqlschema.Default)
	if o.ClaimMode == ClaimInline {
		o.Isolation = cmp.Or(o.Isolation, pgx.ReadCommitted)
	}
	o.MaxInFlight = cmp.Or(o.MaxInFlight, max(1, maxConns-reserved))
	o.AcquireTimeout = cmp.Or(o.AcquireTimeout, DefaultAcquireTimeout)
	o.Grace = cmp.Or(o.Grace, DefaultGrace)
	o.LookupTimeout = cmp.Or(o.LookupTimeout, DefaultLookupTimeout)
	o.IdleMargin = cmp.Or(o.IdleMargin, DefaultIdleMargin)
	o.ConnectionCheck = cmp.Or(o.ConnectionCheck, DefaultConnectionCheck)
	o.SweepBatch = cmp.Or(o.SweepBatch, DefaultSweepBatch)
}

// checkOptions returns an error that names the field.
func (o *Options) checkOptions(maxConns int) error {
	if err := sqlschema.Check(o.Schema); err != nil {
		return fmt.Errorf("idempg: Options.Schema: %w", err)
	}
	switch o.Isolation {
	case "", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
	default:
		return fmt.Errorf("idempg: Options.Isolation: %q is not one that protects writes", o.Isolation)
	}
	switch {
	case o.ClaimMode > ClaimInline:
		return fmt.Errorf("idempg: Options.ClaimMode: %d is unknown", o.ClaimMode)
	case o.ClaimMode == ClaimInline && o.Isolation != pgx.ReadCommitted:
		return fmt.Errorf("idempg: Options.Isolation: ClaimInline needs %q", pgx.ReadCommitted)
	}
	if o.MaxInFlight < 1 || o.MaxInFlight > maxConns {
		return fmt.Errorf("idempg: Options.MaxInFlight is %d, and must be 1 to the pool's MaxConns, %d", o.MaxInFlight, maxConns)
	}
	if o.MaxPerScope < 0 {
		return errors.New("idempg: Options.MaxPerScope must not be negative")
	}
	if o.SweepBatch < 1 {
		return errors.New("idempg: Options.SweepBatch must be positive")
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"AcquireTimeout", o.AcquireTimeout}, {"Grace", o.Grace},
		{"LookupTimeout", o.LookupTimeout}, {"IdleMargin", o.IdleMargin},
	} {
		if d.value < time.Millisecond {
			return fmt.Errorf("idempg: Options.%s must be at least a millisecond", d.field)
		}
	}
	if err := txguard.ValidateConnectionCheck(o.ConnectionCheck); err != nil {
		return fmt.Errorf("idempg: Options.ConnectionCheck: %w", err)
	}
	return nil
}
