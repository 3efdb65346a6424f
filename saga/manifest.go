package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// ErrUnknownVersion reports an instance whose definition, in its version, is not registered.
var ErrUnknownVersion = errors.New("saga: no such definition is registered")

// A planSet is the definitions of an orchestrator, with those nested in them.
type planSet struct {
	plans []Plan
	flows map[versionKey]*flow.Flow

	// The versions, as arguments of statements. hashes are those of the plans, as instances remember them.
	names    []string
	versions []int32
	hashes   []string
}

type versionKey struct {
	name    string
	version int
}

func newPlanSet(plans []Plan) (*planSet, error) {
	s := &planSet{flows: map[versionKey]*flow.Flow{}}
	for _, p := range plans {
		if err := s.addPlanWithNested(p); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *planSet) addPlanWithNested(p Plan) error {
	if p == nil {
		return errors.New("saga: a definition is nil")
	}
	key := versionKey{p.Name(), p.Version()}
	if other, ok := s.flows[key]; ok {
		if other.Machine.Plan().Hash() != p.Hash() {
			return fmt.Errorf("saga: there are two definitions of %s, version %d", key.name, key.version)
		}
		if (other.OnEnd == nil) != (p.compiledFlow().OnEnd == nil) {
			return fmt.Errorf("saga: there are two definitions of %s, version %d, one of them without OnEnd: a saga around it must nest the one with OnEnd", key.name, key.version)
		}
		return nil
	}
	f := p.compiledFlow()
	s.flows[key] = f
	s.plans = append(s.plans, p)
	s.names, s.versions, s.hashes = append(s.names, key.name), append(s.versions, int32(key.version)), append(s.hashes, f.Hash)
	for _, child := range p.nestedPlans() {
		if err := s.addPlanWithNested(child); err != nil {
			return err
		}
	}
	return nil
}

// flowOfInstance returns the definition by which an instance began. Its error is an [ErrUnknownVersion].
func (s *planSet) flowOfInstance(row *sagarow.Row) (*flow.Flow, error) {
	f, ok := s.flows[versionKey{row.Name, row.Version}]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: %s, version %d", ErrUnknownVersion, row.Name, row.Version)
	case f.Hash != row.Hash:
		return nil, fmt.Errorf("%w: %s, version %d, with the steps that the instance has: they were changed without raising the version", ErrUnknownVersion, row.Name, row.Version)
	}
	return f, nil
}

// allVersionsName reports whether a step has that name in all versions of the saga whose replies come by topic.
func (s *planSet) allVersionsName(topic string, step int, name string) bool {
	for key, f := range s.flows {
		if Topic(key.name) == topic && checkReplyName(f, step, name) != nil {
			return false
		}
	}
	return true
}

// ErrUnfinishable reports live instances that a binary cannot finish.
var ErrUnfinishable = errors.New("saga: there are live instances that cannot be finished")

// An UnfinishableError is an [ErrUnfinishable] with the versions.
type UnfinishableError struct{ Versions []LiveVersion }

// A LiveVersion is a version of a saga that has instances which have not ended.
type LiveVersion struct {
	Saga      string
	Version   int
	Instances int
	Problem   string // why the binary cannot finish them; "": it can
}

// Error names each version, with its problem.
func (e *UnfinishableError) Error() string {
	var s strings.Builder
	s.WriteString(ErrUnfinishable.Error())
	for _, v := range e.Versions {
		fmt.Fprintf(&s, "; %s, version %d, %d live: %s", v.Saga, v.Version, v.Instances, v.Problem)
	}
	return s.String()
}

// Unwrap returns [ErrUnfinishable].
func (e *UnfinishableError) Unwrap() error { return ErrUnfinishable }

// A Manifest lists the definitions of a binary, as data: the instances that it can finish. If a binary prints its
// manifest, with [json.Marshal], a release can be checked before it is deployed.
type Manifest []ManifestEntry

// A ManifestEntry is a definition.
type ManifestEntry struct {
	Saga    string          `json:"saga"`
	Version int             `json:"version"`
	Hash    string          `json:"hash"`
	Plan    json.RawMessage `json:"plan"` // its steps
}

// NewManifest returns the manifest of plans, with those nested in them.
func NewManifest(plans ...Plan) Manifest {
	var m Manifest
	for _, p := range plans {
		m = append(m, ManifestEntry{p.Name(), p.Version(), p.Hash(), encodePlanJSON(p)})
		m = append(m, NewManifest(p.nestedPlans()...)...)
	}
	slices.SortFunc(m, func(a, b ManifestEntry) int {
		if c := strings.Compare(a.Saga, b.Saga); c != 0 {
			return c
		}
		return a.Version - b.Version
	})
	return slices.CompactFunc(m, func(a, b ManifestEntry) bool { return a.Saga == b.Saga && a.Version == b.Version })
}

func encodePlanJSON(p Plan) json.RawMessage {
	text, err := json.Marshal(p.compiledFlow().Machine.Plan())
	if err != nil {
		panic(err) // strings, numbers and booleans
	}
	return text
}

// ReadManifest reads the JSON of a Manifest.
func ReadManifest(r io.Reader) (Manifest, error) {
	var m Manifest
	if err := json.NewDecoder(r).Decode(&m); err != nil {
		return nil, fmt.Errorf("saga: manifest: %w", err)
	}
	return m, nil
}

// Check returns the versions that have live instances in schema, each with its problem if m cannot finish it. With
// names given, it leaves out other sagas. The error is PostgreSQL's.
func (m Manifest) Check(ctx context.Context, db *pgxpool.Pool, schema string, names ...string) ([]LiveVersion, error) {
	if schema == "" {
		schema = sqlschema.Default
	}
	if err := sqlschema.Check(schema); err != nil {
		return nil, fmt.Errorf("saga: schema: %w", err)
	}
	sql := newStatements(schema)
	read := func(r pgx.CollectableRow) (v LiveVersion, err error) {
		var hash string
		if err = r.Scan(&v.Saga, &v.Version, &v.Instances, &hash); err == nil {
			v.Problem = m.findProblem(v, hash)
		}
		return v, err
	}
	all, err := pg.Collect(ctx, pg.NewOwn(db), read, sql.liveVersions)
	if err != nil {
		return nil, fmt.Errorf("saga: list live versions: %w", sqlschema.Explain(err))
	}
	return slices.DeleteFunc(all, func(v LiveVersion) bool { return len(names) > 0 && !slices.Contains(names, v.Saga) }), nil
}

// findProblem returns why m cannot finish instances of v that began by a plan whose hash begins so; "" if it can.
func (m Manifest) findProblem(v LiveVersion, hash string) string {
	for _, e := range m {
		switch {
		case e.Saga != v.Saga || e.Version != v.Version:
		case !strings.HasPrefix(e.Hash, hash):
			return "its steps have been changed without raising the version"
		default:
			return ""
		}
	}
	return "the version is not registered"
}

// registerPolicy spaces the tries while the database is away.
var registerPolicy = backoff.Policy{Base: 100 * time.Millisecond, Cap: 5 * time.Second}

// registerPatiently registers the plans, and tries again while the database is away. Any other error is final.
func (o *Orchestrator) registerPatiently(ctx context.Context) error {
	for try := 1; ; try++ {
		err := o.registerPlans(ctx)
		var network net.Error
		if err == nil || ctx.Err() != nil || !pg.IsAway(err) && !errors.As(err, &network) {
			return err
		}
		o.opts.Logger.WarnContext(ctx, "saga: the definitions are not registered yet: the database is away", "error", err)
		if err := backoff.Sleep(ctx, registerPolicy.Wait(try)); err != nil {
			return err
		}
	}
}

// registerPlans checks that this binary can finish all live instances, and stores its plans.
func (o *Orchestrator) registerPlans(ctx context.Context) error {
	m := NewManifest(o.plans.plans...)
	live, err := m.Check(ctx, o.db.Pool(), o.opts.Schema, o.plans.names...)
	if err != nil {
		return err
	}
	var bad []LiveVersion
	for _, v := range live {
		_, registered := o.plans.flows[versionKey{v.Saga, v.Version}]
		if v.Problem != "" && (registered || !o.opts.Partial) {
			bad = append(bad, v)
		}
	}
	if len(bad) > 0 {
		return &UnfinishableError{bad}
	}
	for _, e := range m {
		if _, err := o.db.Exec(ctx, o.sql.register, e.Saga, e.Version, e.Hash, string(e.Plan)); err != nil {
			return fmt.Errorf("saga: register %s: %w", e.Saga, sqlschema.Explain(err))
		}
	}
	return nil
}
