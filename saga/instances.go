package saga

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// MaxList is how many instances are listed at once.
const MaxList = 1000

// An Address says which instance.
type Address struct {
	Scope string // may be left out where a key is used in one scope alone
	Key   string

	// Path is where it is nested: the n of its step in the saga around it. That of the outermost
	// instance is "", or a dot and the incarnation of the request that began it. It may be left
	// out for the outermost instance of a key that was used once.
	Path string
}

// String returns it for people.
func (a Address) String() string {
	s := a.Key
	if a.Scope != "" {
		s = a.Scope + "/" + s
	}
	switch a.Path {
	case "":
		return s
	case flow.Root(a.Path):
		return s + ", path " + a.Path
	}
	return s + ", nested at " + a.Path
}

// An Instance is one run of a saga, as it is listed.
type Instance struct {
	Address
	ID, Root string // UUIDv7: the correlation id of its messages, and that of the outermost
	Saga     string
	Version  int
	Parent   string // name of the saga around it
	Status   Status
	Reason   string // why it is compensated, or stuck; or what keeps an orchestrator from going on
	Tries    int    // how often an orchestrator has begun to go on, and not come to an end

	StartedAt time.Time
	UpdatedAt time.Time // when something has happened to it last
	DueAt     time.Time // when an orchestrator looks at it next; zero: when somebody replies or decides
	EndedAt   time.Time // zero: it is live
}

// ErrAmbiguous reports that a key has several instances. Nothing has changed.
var ErrAmbiguous = errors.New("saga: the key has several instances, in several scopes or used again; say the scope and the path")

// An AmbiguousError is an [ErrAmbiguous] that says which: the ten that began last, the newest first.
type AmbiguousError struct{ Addresses []Address }

// Error lists the instances.
func (e *AmbiguousError) Error() string {
	all := make([]string, len(e.Addresses))
	for i, at := range e.Addresses {
		all[i] = at.String()
	}
	return fmt.Sprintf("%v: %s", ErrAmbiguous, strings.Join(all, "; "))
}

// Unwrap returns [ErrAmbiguous].
func (e *AmbiguousError) Unwrap() error { return ErrAmbiguous }

const maxAddresses = 10

// ErrPlanUnknown reports an instance of whose version no orchestrator has
// registered the plan in the schema, so that it cannot be said what its steps are. Nothing has changed.
var ErrPlanUnknown = errors.New("saga: no orchestrator has registered this version in the schema: run one that knows it")

// InstancesOptions are what most callers leave alone.
type InstancesOptions struct {
	Schema string // Postgres schema of the instances; default: sagamill
}

// Instances are those of a schema, for the operator: it needs no definition and no
// [Orchestrator]. Any number of goroutines may use it.
type Instances struct {
	db     *pgxpool.Pool
	rows   sagarow.Statements
	sql    instanceQueries
	writer *outbox.Writer
}

// NewInstances returns those of a schema. It does no I/O. A nil opts means the
// defaults. Its only error names a schema that is not a plain identifier, or a missing pool.
func NewInstances(db *pgxpool.Pool, opts *InstancesOptions) (*Instances, error) {
	if opts == nil {
		opts = &InstancesOptions{}
	}
	if db == nil {
		return nil, errors.New("saga: NewInstances needs a pool")
	}
	schema := cmp.Or(opts.Schema, sqlschema.Default)
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: schema})
	if err != nil {
		return nil, fmt.Errorf("saga: InstancesOptions: %w", err)
	}
	return &Instances{db: db, rows: sagarow.NewStatements(schema), sql: newInstanceQueries(schema), writer: writer}, nil
}

// A Filter picks instances. They match all of its fields that are not zero; the
// zero Filter picks every one, nested ones too.
type Filter struct {
	Saga    string
	Version int
	Status  Status
	Live    bool // not ended
	Scope   string
	Key     string
	Older   time.Duration // started at least this long ago
	Silent  time.Duration // nothing has happened to it for this long
}

func (f *Filter) args(after Address) ([]any, error) {
	if f.Older < 0 || f.Silent < 0 {
		return nil, errors.New("an age is negative")
	}
	live := f.Live || f.Status != "" && !machine.Phase(f.Status).Ended() // an index has only those
	return []any{planned, after.Scope, after.Key, after.Path, f.Saga, f.Version, f.Status, live, f.Scope, f.Key,
		f.Older.Microseconds(), f.Silent.Microseconds()}, nil
}

// planned lets a statement be planned for its values, each time.
const planned = pgx.QueryExecModeCacheDescribe

// List returns instances by scope, key and path, so that nested ones follow those around
// them, from the one behind after on: at most limit, and at most [MaxList]. Begin with
// the zero Address, and go on with the last one's.
func (n *Instances) List(ctx context.Context, filter Filter, after Address, limit int) ([]Instance, error) {
	args, err := filter.args(after)
	if err != nil {
		return nil, fmt.Errorf("saga: list instances: %w", err)
	}
	rows, _ := n.db.Query(ctx, n.sql.list, append(args, min(limit, MaxList))...)
	all, err := pgx.CollectRows(rows, scanListed)
	if err != nil {
		return nil, fmt.Errorf("saga: list instances: %w", sqlschema.Explain(err))
	}
	return all, nil
}

// Count counts the instances that filter picks.
func (n *Instances) Count(ctx context.Context, filter Filter) (count int, err error) {
	args, err := filter.args(Address{})
	if err == nil {
		err = n.db.QueryRow(ctx, n.sql.count, args...).Scan(&count)
	}
	if err != nil {
		return 0, fmt.Errorf("saga: count instances: %w", sqlschema.Explain(err))
	}
	return count, nil
}

func scanListed(r pgx.CollectableRow) (i Instance, err error) {
	at := func(t *time.Time) *zeronull.Timestamptz { return (*zeronull.Timestamptz)(t) }
	err = r.Scan(&i.Scope, &i.Key, &i.Path, &i.ID, &i.Root, &i.Saga, &i.Version, &i.Parent, &i.Status, &i.Reason, &i.Tries,
		&i.StartedAt, &i.UpdatedAt, at(&i.DueAt), at(&i.EndedAt))
	return i, err
}

// resolve completes at, where it has no scope or no path.
func (n *Instances) resolve(ctx context.Context, tx pgx.Tx, at Address) (Address, error) {
	if at.Scope != "" && at.Path != "" {
		return at, nil
	}
	rows, _ := tx.Query(ctx, n.sql.findAddresses, at.Key, at.Path, at.Scope, maxAddresses)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Address])
	switch {
	case err != nil:
		return at, fmt.Errorf("saga: find instance: %w", sqlschema.Explain(err))
	case len(found) == 0:
		return at, ErrNoInstance
	case len(found) > 1:
		return at, &AmbiguousError{found}
	}
	return found[0], nil
}

// machine returns the plan of a version as it was registered last. Its error is an
// [ErrPlanUnknown] if it was not.
func (n *Instances) machine(ctx context.Context, tx pgx.Tx, name string, version int, hash string) (*machine.Machine, error) {
	var text string
	err := tx.QueryRow(ctx, n.sql.readPlan, name, version, hash).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("%w: %s, version %d", ErrPlanUnknown, name, version)
	}
	if err != nil {
		return nil, fmt.Errorf("saga: read plan: %w", sqlschema.Explain(err))
	}
	var p machine.Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return nil, fmt.Errorf("%w: %s, version %d: %w", ErrPlanUnknown, name, version, err)
	}
	m, err := machine.Compile(p)
	if err != nil { // by an orchestrator whose plans are not those of this binary
		return nil, fmt.Errorf("%w: %s, version %d: %w", ErrPlanUnknown, name, version, err)
	}
	return m, nil
}
