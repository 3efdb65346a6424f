package saga

import (
	"errors"
	"fmt"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/sagarow"
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
