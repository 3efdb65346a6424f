package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/saga"
)

// Decisions counts instances by what [Instances.DecideAll] did with them, or would do.
type Decisions struct {
	Decided int            // they took the decision, and the journal of each has an entry
	Refused map[string]int // by reason: the decision would break the saga, or has no effect. At most 50 reasons
	Changed int            // they changed after they were read: the filter no longer picks them, or they now refuse the decision
	Busy    int            // their rows were locked for longer than a second
}

// TotalRefused returns how many instances refused the decision.
func (d *Decisions) TotalRefused() (n int) {
	for _, count := range d.Refused {
		n += count
	}
	return n
}

const (
	maxReasons   = 50
	otherReasons = "other reasons"
)

func (d *Decisions) addRefusal(reason string) {
	if d.Refused == nil {
		d.Refused = map[string]int{}
	}
	if d.Refused[reason] == 0 && len(d.Refused) >= maxReasons-1 {
		reason = otherReasons
	}
	d.Refused[reason]++
}

// DecideOptions change [Instances.DecideAll]. The zero value is usable.
type DecideOptions struct {
	// Rate is a limit in instances per second; default: none. Orchestrators send the resulting commands as fast as they
	// can: only this limit protects participants.
	Rate float64

	// Progress is called after each page of at most 500 instances with the counts so far. Default: none.
	Progress func(Decisions)
}

// A DecisionPreview is an instance with what a decision would make of it.
type DecisionPreview struct {
	Instance
	Refusal string // why the decision would be refused; "": it would not
}

// DecideAll applies d to each instance that filter picks and that is not refused, as [Instances.Decide] does: one
// transaction for each, with an entry in its journal. It decides about live instances that began before the call, nested
// ones too, page by page in the order of their addresses. An instance that filter no longer picks once it is locked is
// left alone.
//
// When ctx ends, DecideAll ends between two instances and returns the error of ctx with the counts. After any other
// error the last decision may have committed. Repeat the call with a filter that leaves out what has moved, such as
// InstanceFilter.Silent. Its error is an [ErrInvalid] for a filter or options that make no sense.
func (n *Instances) DecideAll(ctx context.Context, filter InstanceFilter, d Decision, opts *DecideOptions) (Decisions, error) {
	o := DecideOptions{}
	if opts != nil {
		o = *opts
	}
	if o.Rate < 0 {
		return Decisions{}, fmt.Errorf("%w: DecideOptions.Rate is negative", ErrInvalid)
	}
	if err := n.completeDecision(&d); err != nil {
		return Decisions{}, err
	}
	d.ofMany = filter.ID == ""
	s := &decisionSweep{Instances: n, decision: d, filter: filter, plans: n.newPlanReader(), rate: rate(o.Rate)}
	s.pageDone = func() {
		if o.Progress != nil {
			soFar := s.counts
			soFar.Refused = maps.Clone(soFar.Refused)
			o.Progress(soFar)
		}
	}
	s.each = func(ctx context.Context, p *pickedInstance, refusal error) error {
		if refusal != nil {
			s.counts.addRefusal(classifyRefusal(refusal))
			return nil
		}
		s.tried++
		return s.decidePicked(ctx, p)
	}
	err := s.sweepInstances(ctx)
	return s.counts, err
}

// PreviewAll returns what [Instances.DecideAll] would do with the instances that filter picks. It calls each for every
// instance, in the order of DecideAll. A nil each is allowed, and an error of each ends the preview. It takes no lock and changes
// nothing. Instances that move between preview and decision make the counts differ.
func (n *Instances) PreviewAll(ctx context.Context, filter InstanceFilter, d Decision, each func(DecisionPreview) error) (Decisions, error) {
	if err := n.completeDecision(&d); err != nil {
		return Decisions{}, err
	}
	d.ofMany = filter.ID == ""
	s := &decisionSweep{Instances: n, decision: d, filter: filter, plans: n.newPlanReader(), pageDone: func() {}}
	s.each = func(_ context.Context, p *pickedInstance, refusal error) error {
		seen := DecisionPreview{Instance: p.Instance}
		if refusal == nil {
			s.counts.Decided++
		} else {
			seen.Refusal = formatRefusal(refusal)
			s.counts.addRefusal(classifyRefusal(refusal))
		}
		if each == nil {
			return nil
		}
		return each(seen)
	}
	err := s.sweepInstances(ctx)
	return s.counts, err
}

// A decisionSweep visits the instances that a filter picks, page by page.
type decisionSweep struct {
	*Instances
	decision Decision
	filter   InstanceFilter
	plans    *planReader
	rate     rate
	counts   Decisions
	tried    int // instances of the current page that did not refuse the decision as they were read

	// each is called for each instance, with the refusal that the instance as read gives, or nil. pageDone is called
	// after each page.
	each     func(ctx context.Context, p *pickedInstance, refusal error) error
	pageDone func()
}

// A pickedInstance is an instance as a page of a sweep has read it.
type pickedInstance struct {
	Instance
	hash     string // of its plan
	progress string // "": it is too large for a page
	now      machine.Millis
}

// sweepInstances visits all live instances that the filter picks.
func (s *decisionSweep) sweepInstances(ctx context.Context) error {
	if machine.Phase(s.filter.Status).Ended() {
		return fmt.Errorf("%w: an instance that is %s takes no decision", ErrInvalid, s.filter.Status)
	}
	s.filter.Live = true
	var began time.Time
	if err := s.db.QueryRow(ctx, s.sql.readClock).Scan(&began); err != nil {
		return fmt.Errorf("operator: %s instances: %w", s.decision.Verb, sqlschema.Explain(err))
	}
	size := s.rate.batchSize(batchSize)
	for after := (saga.Address{}); ctx.Err() == nil; {
		page, err := s.readPage(ctx, after, began, size)
		if err != nil {
			return err
		}
		s.tried = 0
		for i := range page {
			if err := s.visitInstance(ctx, &page[i]); err != nil {
				return err
			}
			after = page[i].Address
		}
		s.pageDone()
		if len(page) < size {
			return nil
		}
		s.keepRate(ctx, s.rate, s.tried)
	}
	return ctx.Err()
}

// readPage reads the next instances without a lock.
func (s *decisionSweep) readPage(ctx context.Context, after saga.Address, began time.Time, size int) ([]pickedInstance, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	args, err := s.filter.instanceArgs(after)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var page []pickedInstance
	err = s.readLimited(ctx, func(db querier) (err error) {
		rows, _ := db.Query(ctx, s.sql.pick, append(args, size, began, maxListedProgress)...)
		page, err = pgx.CollectRows(rows, scanPicked)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("operator: %s instances: %w", s.decision.Verb, sqlschema.Explain(err))
	}
	return page, nil
}

func scanPicked(r pgx.CollectableRow) (p pickedInstance, err error) {
	at := func(t *time.Time) *zeronull.Timestamptz { return (*zeronull.Timestamptz)(t) }
	i := &p.Instance
	err = r.Scan(&i.Scope, &i.Key, &i.Path, &i.ID, &i.Root, &i.Saga, &i.Version, &i.Parent, &i.Status, &i.Reason, &i.Tries,
		&i.StartedAt, &i.UpdatedAt, at(&i.DueAt), at(&i.EndedAt), &p.hash, &p.progress, &p.now)
	return p, err
}

// visitInstance judges an instance as it was read, and calls each with the refusal.
func (s *decisionSweep) visitInstance(ctx context.Context, p *pickedInstance) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	refusal, err := s.judgePicked(ctx, p)
	switch {
	case errors.Is(err, saga.ErrNoInstance):
		s.counts.Changed++
		return nil
	case err != nil:
		return fmt.Errorf("operator: %s %s: %w", s.decision.Verb, p.Address, sqlschema.Explain(err))
	case !s.filter.holdsUp(&p.Instance):
		return nil
	}
	return s.each(ctx, p, refusal)
}

// judgePicked returns the refusal that the decision would get, nil for none. It changes nothing.
func (s *decisionSweep) judgePicked(ctx context.Context, p *pickedInstance) (refusal, err error) {
	i := &sagarow.Row{Name: p.Saga, Version: p.Version, Hash: p.hash, Status: sagarow.Status(p.Status), Reason: p.Reason, Now: p.now}
	i.Scope, i.Key, i.Path = p.Scope, p.Key, p.Path
	if p.progress == "" {
		if i, err = s.rows.ReadRow(ctx, s.db, sagarow.Address(p.Address)); err != nil {
			return nil, err
		}
	} else if err := json.Unmarshal([]byte(p.progress), &i.Progress); err != nil {
		return fmt.Errorf("%w: progress: %w", flow.ErrUnfit, err), nil
	}
	if m, err := s.plans.machineOf(ctx, s.db, i); err == nil && m.Fits(&i.Progress) {
		p.Step, p.WaitsFor = waitsOf(m, &i.Progress)
	}
	if _, err = s.moveRow(ctx, s.db, s.plans, i, &s.decision); isRefusal(err) {
		return err, nil
	}
	return nil, err
}

// errPickedChanged rolls back the transaction of an instance that changed after it was read.
var errPickedChanged = errors.New("operator: the filter does not pick the instance any more")

// decidePicked locks an instance and applies the decision, unless the instance has changed. The end of ctx does not
// cancel a transaction that has begun.
func (s *decisionSweep) decidePicked(ctx context.Context, p *pickedInstance) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	err := s.commitChange(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.sql.limitLocks, strconv.FormatInt(lockPatience.Milliseconds(), 10)); err != nil {
			return err
		}
		i, err := s.rows.LockRow(ctx, tx, sagarow.Address(p.Address))
		if err != nil {
			return err
		}
		args, err := s.filter.instanceArgs(p.Address)
		if err != nil {
			return err
		}
		var picked bool
		if err := tx.QueryRow(ctx, s.sql.checkPicked, args...).Scan(&picked); err != nil {
			return err
		}
		if !picked {
			return errPickedChanged
		}
		return s.applyDecision(ctx, tx, s.plans, i, &s.decision)
	})
	switch {
	case err == nil:
		s.counts.Decided++
	case errors.Is(err, errPickedChanged), errors.Is(err, saga.ErrNoInstance), isRefusal(err): // it did not refuse as it was read
		s.counts.Changed++
	case isContended(err):
		s.counts.Busy++
	default:
		return fmt.Errorf("operator: %s %s: %w", s.decision.Verb, p.Address, sqlschema.Explain(err))
	}
	return nil
}

// isRefusal reports whether err says that an instance does not take a decision.
func isRefusal(err error) bool {
	var unknown *stepUnknownError
	return errors.Is(err, ErrRefused) || errors.Is(err, ErrPlanUnknown) || errors.Is(err, flow.ErrUnfit) || errors.As(err, &unknown)
}

// formatRefusal returns a refusal for people.
func formatRefusal(refusal error) string {
	return strings.TrimPrefix(strings.TrimPrefix(refusal.Error(), ErrRefused.Error()+": "), "operator: ")
}

// classifyRefusal returns the part of a refusal that is the same for other instances. Details of one instance follow a
// colon, and are cut off.
func classifyRefusal(refusal error) string {
	class, _, _ := strings.Cut(formatRefusal(refusal), ": ")
	return class
}

// A planReader keeps the machines of the plans that it has read. One goroutine may use it.
type planReader struct {
	*Instances
	known map[planName]planResult
}

type planName struct {
	saga    string
	version int
	hash    string
}

type planResult struct {
	machine *machine.Machine
	err     error // an [ErrPlanUnknown]
}

func (n *Instances) newPlanReader() *planReader { return &planReader{n, map[planName]planResult{}} }

// machineOf returns the machine of i's plan. Its error is an [ErrPlanUnknown] if the plan is not registered.
func (r *planReader) machineOf(ctx context.Context, db sagarow.Querier, i *sagarow.Row) (*machine.Machine, error) {
	name := planName{i.Name, i.Version, i.Hash}
	result, known := r.known[name]
	if !known {
		result.machine, result.err = r.readMachine(ctx, db, i.Name, i.Version, i.Hash)
		if result.err == nil || errors.Is(result.err, ErrPlanUnknown) {
			r.known[name] = result
		}
	}
	return result.machine, result.err
}
