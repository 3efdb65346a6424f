package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// Address and Status are those of package saga, for programs that import no other package of this module.
type (
	Address = saga.Address
	Status  = saga.Status
)

// An Instance is one run of a saga, as lists show it.
type Instance struct {
	saga.Address
	ID, Root string // UUIDv7: the correlation id of its messages, and that of the outermost
	Saga     string
	Version  int
	Parent   string // name of the saga around it
	Status   saga.Status
	Reason   string // why it compensates or is stuck; or the error that keeps an orchestrator from continuing
	Tries    int    // timer attempts since the instance last moved, failed ones included

	// Step and WaitsFor are set by [Instances.List], for live instances whose plan is registered: the steps that hold
	// the instance up, separated by commas, and what for.
	Step     string
	WaitsFor WaitsFor

	StartedAt time.Time
	UpdatedAt time.Time // the last change
	DueAt     time.Time // when an orchestrator continues it; zero: after a reply or a decision
	EndedAt   time.Time // zero: it is live
}

// ErrAmbiguous reports that a key has several instances. Nothing has changed.
var ErrAmbiguous = errors.New("operator: the key has several instances, in several scopes or used again; say the scope and the path")

// An AmbiguousError is an [ErrAmbiguous] with the ten instances that began last, the newest first.
type AmbiguousError struct{ Addresses []saga.Address }

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

// ErrPlanUnknown reports an instance of a version that no orchestrator has registered in the
// schema, so that its steps are not known. Nothing has changed.
var ErrPlanUnknown = errors.New("operator: no orchestrator has registered this version in the schema: run one that knows it")

// Instances reads the saga instances of a schema and decides about them. It needs no definition
// and no orchestrator. Any number of goroutines may use it.
type Instances struct {
	engine
	rows   sagarow.Statements
	sql    instanceQueries
	writer *outbox.Writer
}

// NewInstances returns the instances of a schema. It does no I/O. Its errors name a schema that
// is not a plain identifier, or a missing pool.
func NewInstances(db *pgxpool.Pool, opts *Options) (*Instances, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, errors.New("operator: NewInstances needs a pool")
	}
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: o.Schema})
	if err != nil {
		return nil, fmt.Errorf("operator: NewInstances: %w", err)
	}
	n := &Instances{rows: sagarow.NewStatements(o.Schema), sql: newInstanceQueries(o.Schema), writer: writer, engine: engine{
		db: pg.NewOwn(db), by: o.By, why: o.Why, begin: sqlBeginDecision, beginRead: o.beginLimitedRead(), pause: backoff.Sleep,
		beforeCommit: func() error { return failpoint.Hit("saga/before-decision-commit") },
		afterCommit:  func() error { return failpoint.Hit("saga/after-decision-commit") },
	}}
	return n, nil
}

// An InstanceFilter picks instances. An instance matches if it matches every field that is not
// zero; the zero InstanceFilter picks all, nested ones too.
type InstanceFilter struct {
	Saga    string
	Version int
	Status  saga.Status
	Live    bool // not ended
	Scope   string
	Key     string
	Older   time.Duration // started at least this long ago
	Silent  time.Duration // unchanged for this long
	Ended   time.Duration // ended within this time; it picks no live instance
	ID      string        // a UUID: the correlation id of its messages

	// UnchangedSince is a moment by the clock of the database: see [ReadClock]. A change of many with such a filter can be
	// repeated: what it has changed, it leaves alone. [Instances.PreviewAll] with the same filter says what it will do. Older,
	// Silent and Ended are ages at this moment.
	UnchangedSince time.Time

	// Step is the name of a step that holds the instance up, as [Instance].Step has it. It picks live instances whose
	// plan is registered. [Instances.Count] refuses it: the tables have no index of steps.
	Step string
}

// holdsUp reports whether the step of the filter is among those that hold an instance up.
func (f *InstanceFilter) holdsUp(i *Instance) bool {
	return f.Step == "" || slices.Contains(strings.Split(i.Step, ","), f.Step)
}

// instanceArgs returns the arguments of a statement with filterInstances: of the Scope of f or, without one, of scopes.
func (f *InstanceFilter) instanceArgs(after saga.Address, scopes ...string) ([]any, error) {
	if f.Older < 0 || f.Silent < 0 || f.Ended < 0 {
		return nil, errors.New("an age is negative")
	}
	var id *uuid.UUID
	if f.ID != "" {
		parsed, err := uuid.Parse(f.ID)
		if err != nil {
			return nil, fmt.Errorf("the id %.50q is not a UUID", f.ID)
		}
		id = &parsed
	}
	live := f.Live || f.Step != "" || f.Status != "" && !machine.Phase(f.Status).Ended() // an index has only these
	if f.Scope != "" {
		scopes = []string{f.Scope}
	}
	return []any{plannedAnew, after.Scope, after.Key, after.Path, f.Saga, f.Version, f.Status, live, scopes, f.Key,
		f.Older.Microseconds(), f.Silent.Microseconds(), id, timeOrNil(f.UnchangedSince), f.Ended.Microseconds()}, nil
}

// List returns instances by scope, key and path, so that nested ones follow those around them:
// those behind the one at after, at most limit and at most [MaxList]. Begin with the zero
// Address and continue with the Address of the last one.
//
// With a Step, List reads limit instances and returns those that the step holds up, which may be none: see
// [Instances.Walk].
func (n *Instances) List(ctx context.Context, filter InstanceFilter, after saga.Address, limit int) ([]Instance, error) {
	all, _, err := n.Walk(ctx, filter, after, limit)
	return all, err
}

// Walk is [Instances.List] and also returns where to go on: the address of the last instance that was read, or nil if
// there are no more.
func (n *Instances) Walk(ctx context.Context, filter InstanceFilter, after saga.Address, limit int) (all []Instance, next *saga.Address, err error) {
	if _, err := filter.instanceArgs(after); err != nil {
		return nil, nil, fmt.Errorf("operator: list instances: %w: %w", ErrInvalid, err)
	}
	limit = min(limit, MaxList)
	err = n.readLimited(ctx, func(db querier) error {
		all = nil
		scopes, known, err := n.narrowFilter(ctx, db, &filter)
		if err != nil || !known {
			return err
		}
		args, err := filter.instanceArgs(after, scopes...)
		if err != nil {
			return err
		}
		rows, _ := db.Query(ctx, n.sql.list, append(args, limit)...)
		if all, err = pgx.CollectRows(rows, scanListed); err != nil {
			return err
		}
		return n.addWaits(ctx, db, all)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("operator: list instances: %w", sqlschema.Explain(err))
	}
	if len(all) > 0 && len(all) == limit {
		last := all[len(all)-1].Address
		next = &last
	}
	return slices.DeleteFunc(all, func(i Instance) bool { return !filter.holdsUp(&i) }), next, nil
}

// Count counts the instances that filter picks.
func (n *Instances) Count(ctx context.Context, filter InstanceFilter) (count int, err error) {
	return n.countInstances(ctx, filter, nil)
}

// CountUpTo is [Instances.Count] and stops at limit, so that its cost does not grow with the table. A result of limit
// means: at least so many.
func (n *Instances) CountUpTo(ctx context.Context, filter InstanceFilter, limit int) (int, error) {
	return n.countInstances(ctx, filter, &limit)
}

func (n *Instances) countInstances(ctx context.Context, filter InstanceFilter, limit *int) (count int, err error) {
	_, err = filter.instanceArgs(saga.Address{})
	switch {
	case err != nil:
		return 0, fmt.Errorf("operator: count instances: %w: %w", ErrInvalid, err)
	case filter.Step != "":
		return 0, fmt.Errorf("operator: count instances: %w: a filter with a step cannot be counted", ErrInvalid)
	}
	err = n.readLimited(ctx, func(db querier) error {
		scopes, known, err := n.narrowFilter(ctx, db, &filter)
		if err != nil || !known {
			return err
		}
		args, err := filter.instanceArgs(saga.Address{}, scopes...)
		if err != nil {
			return err
		}
		return db.QueryRow(ctx, n.sql.count, append(args, limit)...).Scan(&count)
	})
	if err != nil {
		return 0, fmt.Errorf("operator: count instances: %w", sqlschema.Explain(err))
	}
	return count, nil
}

func scanListed(r pgx.CollectableRow) (i Instance, err error) {
	at := func(t *time.Time) *zeronull.Timestamptz { return (*zeronull.Timestamptz)(t) }
	err = r.Scan(&i.Scope, &i.Key, &i.Path, &i.ID, &i.Root, &i.Saga, &i.Version, &i.Parent, &i.Status, &i.Reason, &i.Tries,
		&i.StartedAt, &i.UpdatedAt, at(&i.DueAt), at(&i.EndedAt))
	return i, err
}

// Find completes an address without a scope or a path. Its error is an [saga.ErrNoInstance] if there is no instance at
// the address, or an [ErrAmbiguous].
func (n *Instances) Find(ctx context.Context, at saga.Address) (saga.Address, error) {
	return n.findAddress(ctx, n.db, at)
}

// resolveAddress is Find, but does not look for an address that is complete.
func (n *Instances) resolveAddress(ctx context.Context, tx pgx.Tx, at saga.Address) (saga.Address, error) {
	if at.Scope != "" && at.Path != "" {
		return at, nil
	}
	return n.findAddress(ctx, tx, at)
}

func (n *Instances) findAddress(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, at saga.Address) (saga.Address, error) {
	rows, _ := db.Query(ctx, n.sql.findAddresses, at.Key, at.Path, at.Scope, maxAddresses)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[saga.Address])
	switch {
	case err != nil:
		return at, fmt.Errorf("operator: find instance: %w", sqlschema.Explain(err))
	case len(found) == 0:
		return at, saga.ErrNoInstance
	case len(found) > 1:
		return at, &AmbiguousError{found}
	}
	return found[0], nil
}

// readMachine returns the plan of a version as it was registered last. Its error is an
// [ErrPlanUnknown] if there is none.
func (n *Instances) readMachine(ctx context.Context, db sagarow.Querier, name string, version int, hash string) (*machine.Machine, error) {
	var text string
	err := db.QueryRow(ctx, n.sql.readPlan, name, version, hash).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("%w: %s, version %d", ErrPlanUnknown, name, version)
	}
	if err != nil {
		return nil, fmt.Errorf("operator: read plan: %w", sqlschema.Explain(err))
	}
	var p machine.Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return nil, fmt.Errorf("%w: %s, version %d: %w", ErrPlanUnknown, name, version, err)
	}
	m, err := machine.Compile(p)
	if err != nil { // registered by an orchestrator with plans that this binary does not know
		return nil, fmt.Errorf("%w: %s, version %d: %w", ErrPlanUnknown, name, version, err)
	}
	return m, nil
}

// A WaitsFor says what moves a live instance on.
type WaitsFor string

// What an instance can wait for.
const (
	WaitsForPerson       WaitsFor = "person"       // a step is stuck, or the instance is paused: decide about it
	WaitsForParticipant  WaitsFor = "participant"  // its message is a dead letter at the participant
	WaitsForReply        WaitsFor = "reply"        // of a participant; if it comes too late, the instance hangs
	WaitsForNested       WaitsFor = "nested saga"  // which is another instance
	WaitsForAttempt      WaitsFor = "next attempt" // at DueAt
	WaitsForOrchestrator WaitsFor = "orchestrator" // which has work to do
)

// EndStep stands for the call of [saga.Definition.OnEnd] in the place of the name of a step.
const EndStep = "(on-end)"

// maxListedProgress is how many bytes of a progress a list reads. A progress with larger messages names no step.
const maxListedProgress = 64 << 10

// addWaits sets Step and WaitsFor of the live instances in all. Those whose plan is not known stay without.
func (n *Instances) addWaits(ctx context.Context, db querier, all []Instance) error {
	at := map[[3]string]*Instance{}
	var scopes, keys, paths []string
	for k := range all {
		i := &all[k]
		if i.EndedAt.IsZero() {
			at[[3]string{i.Scope, i.Key, i.Path}] = i
			scopes, keys, paths = append(scopes, i.Scope), append(keys, i.Key), append(paths, i.Path)
		}
	}
	if len(scopes) == 0 {
		return nil
	}
	machines := map[string]*machine.Machine{}
	rows, _ := db.Query(ctx, n.sql.readWaits, scopes, keys, paths, maxListedProgress)
	var address [3]string
	var progress, plan string
	_, err := pgx.ForEachRow(rows, []any{&address[0], &address[1], &address[2], &progress, &plan}, func() error {
		m, known := machines[plan]
		if !known {
			m = compilePlan(plan)
			machines[plan] = m
		}
		var p machine.Progress
		if m != nil && json.Unmarshal([]byte(progress), &p) == nil && m.Fits(&p) {
			at[address].Step, at[address].WaitsFor = waitsOf(m, &p)
		}
		return nil
	})
	return err
}

// compilePlan returns nil for a plan that this binary does not know.
func compilePlan(text string) *machine.Machine {
	var p machine.Plan
	if json.Unmarshal([]byte(text), &p) != nil {
		return nil
	}
	m, err := machine.Compile(p)
	if err != nil {
		return nil
	}
	return m
}

// waitsOf returns the steps that hold an instance up, and what for. A person comes before all else.
func waitsOf(m *machine.Machine, p *machine.Progress) (steps string, what WaitsFor) {
	by := map[WaitsFor][]string{}
	for k := range p.Steps {
		if what := waitOfStep(m, k+1, &p.Steps[k]); what != "" {
			by[what] = append(by[what], m.Step(k+1).Name)
		}
	}
	switch {
	case p.End.Stuck:
		by[WaitsForPerson] = append(by[WaitsForPerson], EndStep)
	case p.End.Due != 0:
		by[WaitsForAttempt] = append(by[WaitsForAttempt], EndStep)
	}
	if p.Paused && len(by[WaitsForPerson]) == 0 {
		return "", WaitsForPerson
	}
	for _, what := range []WaitsFor{WaitsForPerson, WaitsForParticipant, WaitsForReply, WaitsForNested, WaitsForAttempt} {
		if len(by[what]) > 0 {
			return strings.Join(by[what], ","), what
		}
	}
	return "", WaitsForOrchestrator
}

// waitOfStep returns what a step waits for, "" for nothing.
func waitOfStep(m *machine.Machine, id int, s *machine.Step) WaitsFor {
	switch s.State {
	case machine.Stuck, machine.UndoStuck:
		return WaitsForPerson
	case machine.Waiting, machine.UndoWaiting:
		return WaitsForAttempt
	case machine.InFlight, machine.Undoing:
	default:
		return ""
	}
	switch {
	case s.Held:
		return WaitsForParticipant
	case m.Step(id).Kind == machine.Nested:
		return WaitsForNested
	}
	return WaitsForReply
}
