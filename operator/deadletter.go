package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/saga"
)

// ErrInvalid reports a filter or options that make no sense. Nothing has changed.
var ErrInvalid = errors.New("operator: invalid options")

// ErrNoDeadLetter reports that no message with this id is in the expected state: it was
// redriven, discarded, run or published, or it never existed.
var ErrNoDeadLetter = errors.New("operator: no such dead letter")

// A Side says which table a dead letter is in.
type Side string

// The sides.
const (
	Inbox  Side = "inbox"  // a message that a step could not handle or read
	Outbox Side = "outbox" // a message that the broker has refused
)

// A State says whether a message is retried without a person.
type State string

// The states.
const (
	StateDead     State = "dead"     // a dead letter: waits for a person
	StateRetrying State = "retrying" // runs, or is published, again when it is due
)

// A DeadLetter is a dead letter, or a message that is retrying.
type DeadLetter struct {
	ID    int64 // unique in its side; of the outbox: its place in the order of the outbox
	Side  Side
	State State

	Scope, Key, Step, N string // the identity of the step; empty where it could not be read

	Topic     string
	MessageID string // of the inbox, as received: any bytes
	Payload   []byte // from [DeadLetters.Get], for a [Keep], and from a preview of the inbox; else nil. See [DeadLetters.GetLimited]
	Size      int    // bytes of payload

	Error       string // of the last attempt; of the outbox, the broker's last answer
	Fingerprint string // of Error without its variable parts: see [LetterGroup]
	Attempts    int    // entries into the handler; of the outbox, refusals: 0 while its topic stalls, 1 or more once buried

	FirstAt time.Time // when it was stored first; of the outbox, when it was written
	LastAt  time.Time // last failure or refusal; of the outbox, when it was buried, if so; without a refusal, when it was written
	DueAt   time.Time // next attempt; zero for a dead letter, and for a message that waits for another one

	// These are set for the inbox only.
	Kind    string           // action, compensation, or unknown: it could not be read
	Headers message.Metadata // as received, properties included: any bytes
	Reason  consumer.Reason
	Stack   string    // of the panic of the last attempt; from [DeadLetters.Get] and for a [Keep]
	Earlier []Failure // the failures before the last one, at most nine; from [DeadLetters.Get] and for a [Keep]
	Edited  bool      // by [DeadLetters.Edit]; the header [HeaderEdited] says when and by whom
	InDoubt bool      // an attempt may have had an effect outside the database

	// These are set for the outbox only.
	Type, OrderingKey                       string
	CorrelationID, CausationID, ContentType string
	HeadersJSON                             json.RawMessage // as stored: an object; nil without headers

	digest []byte // of the payload before its first edit; nil: of Payload
}

// A Failure is what a message failed with, or was refused for, before its last failure. A message keeps its first
// failure and the newest eight before the last one, also when it is redriven. An attempt that ended with its process has left
// no failure. Failures from before the migration 006 are not kept.
type Failure struct {
	At     time.Time       `json:"at"` // as [DeadLetter].LastAt was; zero if that was no time, which a person may have set
	Reason consumer.Reason `json:"reason"`
	Error  string          `json:"error"` // at most 1,000 characters
	Stack  string          `json:"stack"` // of a panic, at most 4,000 characters
}

// A Filter picks letters. A letter matches if it matches every field that is not zero; the
// zero Filter picks every dead letter.
type Filter struct {
	IDs         []int64 // nil: any; empty: none, as [ByID] makes it
	State       State   // of [DeadLetters.List] and [DeadLetters.Count]; default: StateDead
	Error       string  // a literal part of the error
	Scope       string
	Key         string // the idempotency key, without a step
	Topic       string
	MessageID   string        // of the outbox: a UUID
	Older       time.Duration // failed or was refused last at least this long ago
	Step        string
	NoStep      bool   // only letters without a step: it could not be read or, of the outbox, the message states none
	Fingerprint string // of the error: see [LetterGroup]

	// UnchangedSince is a moment by the clock of the database: see [ReadClock]. Letters that died, failed, were redriven,
	// edited or buried after it are left alone, which is checked under the lock of each. So a change with such a filter
	// can be repeated: what it has changed, it leaves alone, even if it died again. Older and Newer are ages at this moment.
	UnchangedSince time.Time

	// A filter of the outbox with one of these is an error.
	Kind   string // action, compensation or unknown
	Reason consumer.Reason
	Newer  time.Duration // failed last at most this long ago
}

// ByID returns the Filter of these ids. Without an id it picks no letter, whereas a nil [Filter].IDs picks any.
func ByID(ids ...int64) Filter { return Filter{IDs: append([]int64{}, ids...)} }

// checkDead returns an error if f picks retrying messages.
func (f *Filter) checkDead(instead string) error {
	if f.State == StateRetrying {
		return errors.New("operator: the message is retrying: " + instead)
	}
	return nil
}

// DeadLetters reads and changes the dead letters of one side of a schema. It needs no
// consumer and no relay. Consumers and relays that run see each change. Several operators
// at once change each letter once. Any number of goroutines may use it.
//
// Changes are made in batches of at most 500 letters, one transaction each. An error comes
// with the count of letters that are known to be changed. Whether the batch of the error
// has committed is unknown: repeat the call, which skips what is done. Each transaction that
// has changed a letter has written a row of the journal: see [ReadJournal].
type DeadLetters struct {
	letters side
}

// A side implements DeadLetters for one table.
type side interface {
	listLetters(ctx context.Context, filter Filter, after int64, limit int) ([]DeadLetter, error)
	getLetter(ctx context.Context, id int64, limit int) (DeadLetter, error)
	countLetters(ctx context.Context, filter Filter) (int, error)
	previewRedrive(ctx context.Context, filter Filter, o PreviewOptions, each func(Preview) error) (Outcomes, error)
	redriveLetters(ctx context.Context, filter Filter, o RedriveOptions) (Outcomes, error)
	discardLetters(ctx context.Context, filter Filter, keep Keep) (int, error)
	buryLetters(ctx context.Context, filter Filter) (int, error)
	groupLetters(ctx context.Context, filter Filter, limit int) (LetterGroups, error)
	retryLetters(ctx context.Context, filter Filter) (int, error)
	editLetter(ctx context.Context, id int64, e Edit) (was, is DeadLetter, err error)
}

// NewDeadLetters returns the dead letters of a schema. It does no I/O. Its errors name a
// schema that is not a plain identifier, an unknown side, or a missing pool.
func NewDeadLetters(db *pgxpool.Pool, side Side, opts *Options) (*DeadLetters, error) {
	o, err := opts.withDefaults()
	switch {
	case err != nil:
		return nil, err
	case db == nil:
		return nil, errors.New("operator: NewDeadLetters needs a pool")
	case side == Inbox:
		return &DeadLetters{newInboxLetters(db, o)}, nil
	case side == Outbox:
		return &DeadLetters{newOutboxLetters(db, o)}, nil
	}
	return nil, fmt.Errorf("operator: there is no side %.20q", side)
}

// List returns letters in the order in which they were stored, without payloads and
// stacks: those behind the id after, at most limit and at most [MaxList]. Begin with 0 and
// continue with the ID of the last one.
//
// Of the outbox, retrying messages are refused ones and those of stalled topics, which have no
// Attempts. Later messages of their ordering keys wait behind them.
func (d *DeadLetters) List(ctx context.Context, filter Filter, after int64, limit int) ([]DeadLetter, error) {
	return d.letters.listLetters(ctx, filter, after, limit)
}

// Get returns a letter of any state with payload and stack. Its error is an
// [ErrNoDeadLetter] if there is none.
func (d *DeadLetters) Get(ctx context.Context, id int64) (DeadLetter, error) {
	return d.letters.getLetter(ctx, id, wholePayload)
}

// GetLimited does what Get does, with the first limit bytes of the payload. [DeadLetter].Size says how many there are.
func (d *DeadLetters) GetLimited(ctx context.Context, id int64, limit int) (DeadLetter, error) {
	return d.letters.getLetter(ctx, id, max(0, limit))
}

// wholePayload is as many bytes as PostgreSQL stores in a column.
const wholePayload = 1 << 30

// Count counts the letters that filter picks.
func (d *DeadLetters) Count(ctx context.Context, filter Filter) (int, error) {
	return d.letters.countLetters(ctx, filter)
}

// RetryNow makes retrying messages that filter picks due, whatever its State, and returns
// how many. Their attempts stay counted. A message that runs at this moment, or has a lease
// for its call, is left out. A message that a consumer has just taken may be taken once
// more, which costs one attempt. It is for the inbox only.
func (d *DeadLetters) RetryNow(ctx context.Context, filter Filter) (int, error) {
	return d.letters.retryLetters(ctx, filter)
}

// A Keep receives letters, one by one and with payload and stack, before they are discarded.
// If it returns an error or takes longer than 30 s, no letter of its batch is discarded: their
// rows are locked meanwhile.
type Keep func(DeadLetter) error

// Discard removes the dead letters that filter picks for good and returns how many. They
// never run. The row of the step stays, so that no other copy of the message runs either:
// the result of a dead action stays unknown.
//
// A keep that is not nil is called before COMMIT: it has seen each letter that is removed. It
// may also have seen letters that are still there after an error. It is for the inbox only.
//
// A discarded letter of the outbox is never published. No message waits behind a dead letter.
func (d *DeadLetters) Discard(ctx context.Context, filter Filter, keep Keep) (int, error) {
	if err := filter.checkDead("make it a dead letter first"); err != nil {
		return 0, err
	}
	return d.letters.discardLetters(ctx, filter, keep)
}

// Redrive retries the dead letters that filter picks and counts the outcomes. Each keeps its
// identity, its message id and the header that records its edits. It is due at once and has
// all its attempts again. The consumer then handles it like any retrying message: see
// [Outcome]. Actions come before compensations: a compensation of a dead action would become
// a dead letter again.
//
// A compensation that is a dead letter because its action was one has to be redriven too,
// with its action or later. It is the only copy: a compensation that is sent again may be a
// duplicate, and a duplicate gets no reply.
//
// Redrive takes the locks that a consumer takes, so that a consumer may decide about a
// duplicate at the same time. Of two redrives one finds each letter. Letters that die after
// Redrive has begun are left alone. When ctx ends, Redrive ends between two batches; a
// second call continues with the letters that are still dead.
//
// A letter of the outbox is published again with its message id and the timestamp of its first
// write. A step that has handled it treats it as a duplicate. All of these letters count as [OutcomeRun]. It does not hold back later messages of its ordering key, which are
// probably published already: it comes behind them, out of order. If the broker refuses it
// again, later messages wait behind it as behind any other. When ctx ends, the batch in hand
// is rolled back.
func (d *DeadLetters) Redrive(ctx context.Context, filter Filter, opts *RedriveOptions) (Outcomes, error) {
	o := RedriveOptions{}
	if opts != nil {
		o = *opts
	}
	if err := filter.checkDead("RetryNow runs it"); err != nil {
		return Outcomes{}, err
	}
	if o.Rate < 0 {
		return Outcomes{}, errors.New("operator: RedriveOptions.Rate is negative")
	}
	return d.letters.redriveLetters(ctx, filter, o)
}

// RedriveOptions change how letters are redriven. The zero value is usable.
type RedriveOptions struct {
	// Rate is a limit in letters per second; default: none. The relay publishes letters of the
	// outbox as fast as it can.
	Rate float64

	// Force is for the inbox only. It redrives letters whose step may have run already: the step has no row, and the
	// letter is older than the rows that retention has removed. An action then runs as if
	// it had never run, and a compensation as if its action had. It also redrives actions of sagas that have ended.
	Force bool

	// Databases are other databases with orchestrated sagas, for [OutcomeSagaEnded]. The database of the letters is always
	// searched. A schema or a database that the role may not or cannot read is left out. Default: none.
	Databases []*pgxpool.Pool

	// Progress is called after each COMMIT with the counts so far. Default: none.
	Progress func(Outcomes)
}

// Bury makes retrying messages that filter picks dead letters before their attempts are used up, so that they can be edited or
// discarded. It returns how many. It skips messages whose step is locked, for
// example by its handler, or whose call is under way. It ignores the State of filter.
//
// It sends no message: [consumer.Step].Unhandled is not called. An orchestrated saga whose
// command is buried waits for the reply until the deadline of the step or, without one,
// until saga.Options.Patience is over. Until then its status is running, not stuck, also
// behind the pivot.
//
// Of the outbox, the messages that wait behind a buried one are published. A message that the
// relay is sending at this moment may still be published, and is no dead letter then.
func (d *DeadLetters) Bury(ctx context.Context, filter Filter) (int, error) {
	return d.letters.buryLetters(ctx, filter)
}

// Preview predicts the outcomes of [DeadLetters.Redrive] for the dead letters that filter
// picks. It calls each for every letter, in the order of a redrive and with payloads; each may
// be nil, and its error ends the preview. It uses the state machine of the consumer, takes no
// lock and changes nothing. It does not know what happens between preview and redrive. The
// outcome of every letter of the outbox is [OutcomeRun].
func (d *DeadLetters) Preview(ctx context.Context, filter Filter, opts *PreviewOptions, each func(Preview) error) (Outcomes, error) {
	if err := filter.checkDead("only dead letters are redriven"); err != nil {
		return Outcomes{}, err
	}
	o := PreviewOptions{}
	if opts != nil {
		o = *opts
	}
	return d.letters.previewRedrive(ctx, filter, o, each)
}

// A Preview is a dead letter with the outcome that a redrive would have.
type Preview struct {
	DeadLetter
	Outcome Outcome
	Why     string

	// Ended is how the orchestrated saga of an action has ended; "" if it has not ended, or is not known. A forced redrive
	// of the action does work that nobody undoes.
	Ended saga.Status
}

// PreviewOptions change a preview of the inbox. The zero value is usable.
type PreviewOptions struct {
	// Consumer is the consumer that will get the letters. Its decoders decide whether a letter is readable.
	// Default: none. Then a letter that the consumer could not read counts as [OutcomeUnread], and so does a letter
	// whose type was edited. A letter counts as undecodable if it was edited and its headers or its JSON cannot be
	// read.
	Consumer *consumer.Consumer

	// Force is [RedriveOptions].Force.
	Force bool

	// Databases is [RedriveOptions].Databases.
	Databases []*pgxpool.Pool
}

// Edit changes payload and headers of a dead letter, and returns it as it was and as it is.
// It stays a dead letter: see [DeadLetters.Redrive].
//
// For its step it stays the same message: its digest stays that of the first payload, so
// that neither it nor a late copy of the original counts as a reused key. Of two edits at
// once the later one sees the headers of the earlier one, and its payload wins. The errors
// are [ErrNoDeadLetter], [ErrIdentity] and [ErrInvalidEdit]; nothing has changed then. It is
// for the inbox only.
func (d *DeadLetters) Edit(ctx context.Context, id int64, e Edit) (was, is DeadLetter, err error) {
	return d.letters.editLetter(ctx, id, e)
}
