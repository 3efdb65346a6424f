package operator

import (
	"cmp"
	"fmt"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// MaxList is the largest number of entries that a list returns at once.
const MaxList = 1000

// Options are those of all constructors of this package. A nil *Options means the defaults.
type Options struct {
	Schema string // PostgreSQL schema of the tables; default: sagamill

	// By is the person and Why the reason, for the journal. Defaults: the login role of the session, and no
	// reason. A decision about an instance and an edit need a name: from here, or said with them.
	By, Why string
}

// withDefaults returns a copy of o with the default schema. Its only error names a schema
// that is not a plain identifier.
func (o *Options) withDefaults() (Options, error) {
	if o == nil {
		o = &Options{}
	}
	filled := *o
	filled.Schema = cmp.Or(o.Schema, sqlschema.Default)
	if err := sqlschema.Check(filled.Schema); err != nil {
		return filled, fmt.Errorf("operator: option Schema: %w", err)
	}
	return filled, nil
}
