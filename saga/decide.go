package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A Verb is what a person has done with an instance.
type Verb string

// The verbs. A verb is about one instance: those nested in it go on, are cancelled with it, and
// can be decided about under their own address.
const (
	// VerbPause has no step begin, end by its deadline, or be undone. Replies are still taken.
	VerbPause Verb = "pause"
	// VerbResume goes on. Deadlines that would have passed meanwhile pass now.
	VerbResume Verb = "resume"
	// VerbCancel compensates, paused or not, without waiting for steps that run. It is
	// refused once the pivot has been sent.
	VerbCancel Verb = "cancel"
	// VerbCompensateTo compensates what comes after Step, which must be done and not
	// one of several in parallel, and pauses then. Resumed, the saga does it anew.
	VerbCompensateTo Verb = "compensate-to"
	// VerbSkip has Step pass for done, with Result, if there is one, put into the state as the
	// participant's would be; or, if it is being undone, for undone.
	VerbSkip Verb = "skip"
	// VerbReject has Step pass for one that has done nothing and never will, so that the saga
	// compensates. It is refused behind the pivot.
	VerbReject Verb = "reject"
	// VerbRetry has Step tried again at once, with all its attempts. Of one that runs, or of which it is
	// not known what it has done, the last message is sent again, as it was but for
	// [outbox.HeaderReplayed], which has a [consumer.Effect] ask before it calls: a participant that
	// has it as a dead letter must redrive that instead. That of a compensation is redriven with its
	// action's: sent again, it is a duplicate that nobody answers, and the instance waits. An Effect with a Verify that asks about it and
	// finds nothing calls after twice its Timeout, 5 s and its Settle: a shorter Deadline of the step passes before. Without a Step, it is
	// done with all that are stuck or wait, and to an instance that no orchestrator could go on with.
	VerbRetry Verb = "retry"
)

// A Decision is what a person wants done.
type Decision struct {
	Verb   Verb
	Step   string
	Result json.RawMessage // of VerbSkip; nil: the state stays as it is
	By     string          // required: who
	Why    string          // required; it is kept, and shown to others
}

// ErrRefused reports a [Decision] that would break the saga, or has nothing to do;
// the error says why. Nothing has changed.
var ErrRefused = machine.ErrRefused

// check returns an error unless d can be decided about some instance.
func (d *Decision) check() error {
	named := map[Verb]bool{
		VerbPause: false, VerbResume: false, VerbCancel: false,
		VerbCompensateTo: true, VerbSkip: true, VerbReject: true, VerbRetry: true,
	}
	takes, known := named[d.Verb]
	switch {
	case !known:
		return fmt.Errorf("there is no verb %.40q", d.Verb)
	case strings.TrimSpace(d.By) == "" || strings.TrimSpace(d.Why) == "":
		return errors.New("it must be said who decides, and why")
	case d.Step != "" && !takes:
		return errors.New("it is about the instance as a whole, not about a step")
	case d.Step == "" && takes && d.Verb != VerbRetry:
		return errors.New("it needs the name of a step")
	case d.Result == nil:
		return nil
	case d.Verb != VerbSkip:
		return errors.New("only a step that is skipped has a result")
	case !json.Valid(d.Result) || !utf8.Valid(d.Result):
		return errors.New("the result is not JSON")
	case len(d.Result) > flow.MaxState:
		return fmt.Errorf("the result has %d bytes, more than %d", len(d.Result), flow.MaxState)
	}
	return nil
}

// event returns d for an instance of m.
func (d *Decision) event(m *machine.Machine, i *sagarow.Row) (machine.Event, error) {
	e := machine.Event{Kind: machine.EventKind(d.Verb), At: i.Now, Reason: flow.ClipReason(d.Why), Result: d.Result}
	if d.Verb == VerbCompensateTo {
		e.Name = d.Step
		return e, nil
	}
	if d.Step == "" {
		return e, nil
	}
	if e.Step = m.FindStep(d.Step); e.Step == 0 {
		names := make([]string, m.Steps())
		for id := range names {
			names[id] = m.Step(id + 1).Name
		}
		return e, fmt.Errorf("there is no step %.70q in %s, version %d: there are %s", d.Step, i.Name, i.Version, strings.Join(names, ", "))
	}
	return e, nil
}

// Decide does d with the instance at an address, and returns what it is then. The
// instance has moved, and the journal says so, once Decide returns nil; what follows
// from it, such as commands, an orchestrator does as soon as it looks at what is due. A reply that comes at
// the same time is taken before or after.
//
// After an error nothing has changed, unless it is PostgreSQL's from COMMIT: an
// [ErrNoInstance], an [ErrAmbiguous], an [ErrPlanUnknown], an [ErrRefused], or what is wrong with d.
func (n *Instances) Decide(ctx context.Context, at Address, d Decision) (is Instance, err error) {
	if err := d.check(); err != nil {
		return is, fmt.Errorf("saga: %s: %w", d.Verb, err)
	}
	err = n.inTx(ctx, func(tx pgx.Tx) error {
		found, err := n.resolve(ctx, tx, at)
		if err != nil {
			return err
		}
		if err := n.decide(ctx, tx, found, &d); err != nil {
			return err
		}
		if is, _, err = n.family(ctx, tx, found); err != nil {
			return err
		}
		return failpoint.Hit("saga/before-decision-commit")
	})
	if err == nil {
		err = failpoint.Hit("saga/after-decision-commit")
	}
	if err != nil {
		return Instance{}, fmt.Errorf("saga: %s %s: %w", d.Verb, at, sqlschema.Explain(err))
	}
	return is, nil
}

// inTx commits what do did, in a transaction of an operator's.
func (n *Instances) inTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, n.db, pgx.TxOptions{BeginQuery: sqlBeginDecision}, do)
}

func (n *Instances) decide(ctx context.Context, tx pgx.Tx, at Address, d *Decision) error {
	i, err := n.rows.LockRow(ctx, tx, sagarow.Address(at))
	if err != nil {
		return err
	}
	m, err := n.machine(ctx, tx, i.Name, i.Version, i.Hash)
	if err != nil {
		return err
	}
	if !m.Fits(&i.Progress) {
		return fmt.Errorf("%w: the instance has %d steps, %s, version %d, has %d", flow.ErrUnfit, len(i.Progress.Steps), i.Name, i.Version, m.Steps())
	}
	e, err := d.event(m, i)
	if err != nil {
		return err
	}
	if err := n.checkNested(ctx, tx, i, m, e); err != nil {
		return err
	}
	if err := m.Apply(&i.Progress, e); err != nil && !(errors.Is(err, ErrRefused) && d.Verb == VerbRetry && d.Step == "" && faultOf(i, m) != "") {
		return err
	}
	return n.store(ctx, tx, i, m, d)
}

// checkNested returns an [ErrRefused] if a step would be settled while the saga nested in it
// still runs: nobody would ever compensate that.
func (n *Instances) checkNested(ctx context.Context, tx pgx.Tx, i *sagarow.Row, m *machine.Machine, e machine.Event) error {
	if e.Kind != machine.Skip && e.Kind != machine.Reject || m.Step(e.Step).Kind != machine.Nested {
		return nil
	}
	path := flow.N(i.Path, e.Step, i.Progress.Steps[e.Step-1].Attempt)
	child, err := n.rows.ReadRow(ctx, tx, sagarow.Address{Scope: i.Scope, Key: i.Key, Path: path})
	switch {
	case errors.Is(err, ErrNoInstance):
		return nil
	case err != nil:
		return err
	case !child.Progress.Phase.Ended():
		return fmt.Errorf("%w: step %s is the saga %s, which has not ended: decide about that, at the path %s", ErrRefused, m.Step(e.Step).Name, child.Name, path)
	}
	return nil
}

// store stores i, which has moved by d, and what is to be told of it.
func (n *Instances) store(ctx context.Context, tx pgx.Tx, i *sagarow.Row, m *machine.Machine, d *Decision) error {
	sent := sagarow.NewMessages(i)
	sent.AnswerParent()
	if len(sent.AllUntraced()) > 0 {
		if err := n.writer.Write(ctx, tx, sent.AllTraced()...); err != nil {
			return err
		}
	}
	progress, err := i.EncodeProgress(m)
	if err != nil {
		return err
	}
	ended := i.Progress.Phase.Ended()
	_, err = tx.Exec(ctx, n.sql.decide, i.Scope, i.Key, i.Path, i.Status, i.Reason, progress, !ended && !i.Progress.Paused, ended, i.Revision)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, n.sql.insertJournal, i.Scope, i.Key, i.Path, d.Verb, d.Step, flow.ClipReason(d.By), flow.ClipReason(d.Why))
	return err
}

// faultOf returns why an orchestrator could not go on with i; "" if it could. It is
// what the row says that the progress does not.
func faultOf(i *sagarow.Row, m *machine.Machine) string {
	if status, reason := sagarow.StatusOf(m, &i.Progress); status == i.Status && reason == i.Reason {
		return ""
	}
	return i.Reason
}
