package operator

import (
	"cmp"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// MaxList is the largest number of entries that a list returns at once.
const MaxList = 1000

// Options are for all constructors of this package, such as [NewDeadLetters]. A nil *Options means the defaults.
type Options struct {
	Schema string // PostgreSQL schema of the tables; default: sagamill

	// By is the name of the person who makes a change; the journal shows this name. A decision about an instance and an
	// edit need a name: from here, or said with them. Default: the login role of the session.
	By  string
	Why string // reason for a change; the journal shows this reason; default: none

	// ReadTimeout limits each statement that lists, counts or groups instances or dead letters; PostgreSQL cancels a
	// longer statement with the code 57014. ReadTimeout also limits each page of instances that Instances.PreviewAll and
	// Instances.DecideAll read. Default: only the statement_timeout of the session applies.
	ReadTimeout time.Duration
}

// beginLimitedRead returns the BEGIN statement of a transaction whose statements ReadTimeout limits.
func (o *Options) beginLimitedRead() string { return beginRead(pgx.ReadCommitted, o.ReadTimeout) }

// beginRead is beginLimitedRead for an isolation level. A timeout of 0 is none.
func beginRead(isolation pgx.TxIsoLevel, timeout time.Duration) string {
	if timeout <= 0 {
		return pg.LimitedReadStatement(isolation)
	}
	return fmt.Sprintf("%s; SET LOCAL statement_timeout = %d", pg.LimitedReadStatement(isolation), max(1, timeout.Milliseconds()))
}

// withDefaults returns a copy of o with the default schema. Its error names a schema that is
// not a plain identifier, or a negative ReadTimeout.
func (o *Options) withDefaults() (Options, error) {
	if o == nil {
		o = &Options{}
	}
	filled := *o
	filled.Schema = cmp.Or(o.Schema, sqlschema.Default)
	if err := sqlschema.Check(filled.Schema); err != nil {
		return filled, fmt.Errorf("operator: option Schema: %w", err)
	}
	if filled.ReadTimeout < 0 {
		return filled, fmt.Errorf("%w: option ReadTimeout is negative", ErrInvalid)
	}
	return filled, nil
}
