package operator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

func (d *inboxLetters) previewRedrive(ctx context.Context, filter Filter, o PreviewOptions, each func(Preview) error) (Outcomes, error) {
	p := &previewer{inboxLetters: d, PreviewOptions: o, counts: Outcomes{}, each: each, known: map[inbox.Identity]*stepStanding{}}
	args, err := d.filterArgs(ctx, filter, 0)
	if err == nil {
		p.sagas, err = findSagas(ctx, d.db.Pool(), o.Databases)
	}
	for i := 0; err == nil && i < len(stages); i++ {
		args[afterArg] = 0
		err = p.previewStage(ctx, append(slices.Clip(args), batchSize, stages[i], pageBytes))
	}
	if err != nil {
		return p.counts, fmt.Errorf("operator: preview: %w", sqlschema.Explain(err))
	}
	return p.counts, nil
}

// A previewer redrives letters without changing them.
type previewer struct {
	*inboxLetters
	PreviewOptions
	each    func(Preview) error
	counts  Outcomes
	known   map[inbox.Identity]*stepStanding // the steps of the letters so far, as a redrive of those leaves them
	horizon *time.Time
	sagas   *endedSagas
}

func (p *previewer) previewStage(ctx context.Context, args []any) error {
	for {
		rows, _ := p.db.Query(ctx, p.sql.page, args...)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := p.previewPage(ctx, ids); err != nil {
			return err
		}
		args[afterArg] = largest(ids)
	}
}

// previewPage previews letters from one snapshot.
func (p *previewer) previewPage(ctx context.Context, ids []int64) error {
	var letters []DeadLetter
	var read []candidate
	var why []error
	err := p.db.InTx(ctx, oneSnapshot, func(tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, p.sql.readLetters, ids)
		if letters, err = pgx.CollectRows(rows, scanInboxLetter); err != nil {
			return err
		}
		for _, l := range letters {
			c, err := p.inspectLetter(l)
			read, why = append(read, c), append(why, err)
		}
		return p.learnSteps(ctx, tx, identitiesOf(read))
	})
	if err == nil {
		err = p.sagas.learn(ctx, p.db.InPlainTx, read)
	}
	for i := 0; err == nil && i < len(letters); i++ {
		err = p.judgeLetter(letters[i], &read[i], why[i])
	}
	return err
}

// oneSnapshot is the transaction in which several tables are read.
var oneSnapshot = pgx.TxOptions{BeginQuery: pg.LimitedReadStatement(pgx.RepeatableRead)}

// learnSteps reads the steps of names. Steps that earlier letters of this preview have
// moved stay as those left them.
func (p *previewer) learnSteps(ctx context.Context, tx pgx.Tx, names []inbox.Identity) error {
	names = slices.DeleteFunc(names, func(id inbox.Identity) bool { return p.known[id] != nil })
	steps, err := readSteps(ctx, tx, p.sql.readSteps, names)
	if err != nil {
		return err
	}
	p.horizon, err = p.completeSteps(ctx, tx, names, steps)
	for id, s := range steps {
		p.known[id] = s
	}
	return err
}

// judgeLetter predicts the outcome of one letter. unreadable says why it cannot be read.
func (p *previewer) judgeLetter(l DeadLetter, c *candidate, unreadable error) error {
	seen := Preview{DeadLetter: l, Outcome: OutcomeUnread}
	step := p.known[c.Identity]
	switch {
	case step != nil:
		seen.Outcome = step.decideOutcome(c, policy{horizon: p.horizon, force: p.Force})
	case unreadable != nil:
		seen.Outcome = OutcomeUndecodable
	}
	seen.Why = whyOutcome[seen.Outcome]
	switch {
	case seen.Outcome == OutcomeUnread && isRetyped(l):
		seen.Why = whyRetyped
	case seen.Outcome == OutcomeUndecodable:
		seen.Why = unreadable.Error()
	case seen.Outcome == OutcomeRun && c.Kind == inbox.Action && step.UndoDigest != nil && step.copies[inbox.Compensation] == nil:
		seen.Why = whyUndone
	}
	if c.ended != "" && (seen.Outcome == OutcomeSagaEnded || seen.Outcome == OutcomeRun) {
		seen.Ended = c.ended
		seen.Why = fmt.Sprintf("its saga has ended (%s), and nobody would undo it", seen.Ended)
	}
	p.counts[seen.Outcome]++
	if p.each == nil {
		return nil
	}
	return p.each(seen)
}

// whyOutcome explains each outcome. The command prints it.
var whyOutcome = map[Outcome]string{
	OutcomeRun:           "its handler is entered again",
	OutcomeNothingToUndo: "its action has not run and will not run any more",
	OutcomeWaits:         "it runs after its action, which is retrying or is redriven with it",
	OutcomeActionDead:    "its action is a dead letter: redrive that too, or first",
	OutcomeUnread:        "a consumer of its topic reads it again; only that one knows",
	OutcomeDuplicate:     "its step is done, or another copy will do it",
	OutcomeSuperseded:    "its compensation came first",
	OutcomeKeyReused:     "its identity was used for another payload",
	OutcomeTooOld:        "its step may have run: it is older than what is known of steps",
}

// whyRetyped explains the outcome of a letter whose type was edited.
const whyRetyped = "its type was edited: only its consumer knows whether that is still one of its step's"

// whyUndone explains the outcome of an action whose compensation waited for it, and is not
// retrying any more.
const whyUndone = "its handler is entered again; its compensation died with it: redrive that too"

// inspectLetter returns l as a redrive judges it, and why its consumer cannot read it, if so.
func (p *previewer) inspectLetter(l DeadLetter) (candidate, error) {
	stored := inbox.StoredMessage{
		Kind: inbox.Kind(l.Kind), Identity: inbox.Identity{Scope: l.Scope, Key: l.Key, Step: l.Step, N: l.N}, Topic: l.Topic, ID: l.MessageID,
		Headers: l.Headers, Payload: l.Payload, Digest: l.digest, Reason: string(l.Reason),
	}
	c := candidate{
		id: l.ID, Kind: stored.Kind, Identity: stored.Identity, digest: l.digest,
		written: timeWritten(l.Headers.Get(outbox.PropertyTimestamp), l.FirstAt),
	}
	if c.digest == nil {
		sum := sha256.Sum256(l.Payload)
		c.digest = sum[:]
	}
	var reading inbox.Reading
	if p.Consumer != nil {
		reading = p.Consumer.Inspect(stored)
	}
	switch {
	case !reading.Taken:
		err := inspectAlone(l, stored)
		c.unreadable, c.reread = err != nil, slices.Contains(unreadReasons, l.Reason) || isRetyped(l)
		return c, err
	case reading.Err != nil:
		c.unreadable, c.cancelParked = true, reading.CancelParked
		return c, reading.Err
	}
	c.cancelParked = reading.CancelParked
	if c.Kind == inbox.Unread {
		// The consumer uses the identity that the message itself states.
		c.Kind, c.Identity, c.digest, c.nameless = reading.Kind, reading.Identity, reading.Digest, true
		c.written = timeWritten(l.Headers.Get(outbox.PropertyTimestamp), time.Unix(math.MaxInt32, 0))
	}
	return c, nil
}

// unreadReasons are those of a letter that its consumer could not read. Since then the consumer may have got other steps,
// decoders, keys, formats or options.
var unreadReasons = []consumer.Reason{
	consumer.ReasonKeyMissing, consumer.ReasonKeyMalformed, consumer.ReasonScopeMissing, consumer.ReasonScopeMalformed,
	consumer.ReasonIdentity, consumer.ReasonTypeMissing, consumer.ReasonTypeUnknown, consumer.ReasonTooLarge,
	consumer.ReasonUndecodable, consumer.ReasonFormatUnknown, consumer.ReasonUnverified, consumer.ReasonUnopened,
}

// isRetyped reports whether the type of l was edited.
func isRetyped(l DeadLetter) bool { return typeReceived(l) != l.Headers.Get(outbox.PropertyType) }

// inspectAlone says why l cannot be read, as far as an edit shows that without the steps of its consumer.
func inspectAlone(l DeadLetter, stored inbox.StoredMessage) error {
	unverified := l.Reason == consumer.ReasonFormatUnknown || l.Reason == consumer.ReasonUnverified
	if !l.Edited || unverified || l.Reason == consumer.ReasonUnopened {
		return nil // only its consumer knows what it accepts by now
	}
	if reading := (*consumer.Consumer)(nil).Inspect(stored); reading.Err != nil {
		return reading.Err
	}
	if !json.Valid(l.Payload) {
		return fmt.Errorf("%s: payload is not JSON", consumer.ReasonUndecodable)
	}
	return nil
}
