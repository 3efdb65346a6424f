package idemkey

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sagamill/sagamill/internal/stepkey"
)

// The limits of an identity, in bytes. Stores may rely on them.
const (
	MaxNamespace = 128
	MaxScope     = 255
	MaxKey       = stepkey.MaxKey
)

// An Identity names one intent of one caller. Its parts are never joined into
// one string: ("a:b", "c") and ("a", "b:c") are different identities.
type Identity struct {
	Namespace string // the kind of record; "http" for requests
	Scope     string // where Key is unique, such as a tenant
	Key       string // as the caller chose it; empty: the request has no key
}

// A Fingerprint is a digest of a request. It tells a retry from another request
// that reuses its key. Alg names the algorithm and its settings: sums by two of them
// say nothing about each other. It is "v1" by the default [FingerprintOptions], "v1:" and 16
// hexadecimal digits by others, and whatever FingerprintOptions.Custom says.
type Fingerprint struct {
	Alg string
	Sum []byte
}

// equalsStored compares in constant time, so that timing tells nothing of a stored sum. Processes that
// know no labels, and FingerprintOptions.Unlabelled, have stored the algorithm alone.
func (f Fingerprint) equalsStored(stored Fingerprint) bool {
	algorithm, _, _ := strings.Cut(f.Alg, labelMark)
	known := f.Alg == stored.Alg || algorithm == fingerprintV1 && stored.Alg == fingerprintV1
	return known && subtle.ConstantTimeCompare(f.Sum, stored.Sum) == 1
}

// A State is what a record says of its identity. The numbers are stored.
type State uint8

// The states of a record. An identity without a record is absent.
const (
	StateInProgress State = 1 // an owner runs it, or died running it
	StateFailed     State = 2 // it may run again, for the same request only
	StateCompleted  State = 3 // it has run; the response is kept
	StateTombstone  State = 4 // it has run; the response's body is not kept
	StateUnknown    State = 5 // it may have run; a decision is awaited (see [Claim].External)
)

// A Claim asks to run a request.
type Claim struct {
	// ID must run once. With an empty Key the request need not be remembered:
	// Begin proceeds, and the outcome only commits the business writes or rolls
	// them back.
	ID Identity

	FP    Fingerprint
	Prior []Fingerprint // of the same request, by other settings that records may have been made with

	TTL         time.Duration // the record's life, from this claim on
	Lease       time.Duration // how long an owner may be silent, where the store cannot see it die
	ExecTimeout time.Duration // how long the handler may run

	FailedTTL     time.Duration // the life of a failed record, from its failure on; 0: as TTL
	MaxAttempts   int           // over this many the outcome counts as unknown; 0: no limit
	RejectExpired bool          // an expired key stays refused until it is swept, instead of being new again

	// External says that the handler has effects which the store cannot roll back. The record does not expire before
	// the outcome is known; TTL begins then. A run whose owner has vanished, or that was released with [Hold], is
	// KindUnknown and is not taken over, but for the two exceptions below.
	External   bool
	Recovered  string        // the [Record].Run whose outcome has been found out, which may be taken over; empty: none
	DedupesFor time.Duration // a run that can end within this time of the record's creation repeats no effect, so it may take over
	MaxUnknown int           // with this many unknown outcomes in its scope, a new key is an [*UnknownLimitError]; 0: no limit

	// Misused makes the answer to keep where the handler has ended the transaction itself:
	// see [ErrTxMisuse]. Nil: a tombstone is kept.
	Misused func() Response
}

// Check returns an error that names the part outside its limits. Stores call
// it first, so that no invalid text reaches a statement.
func (c *Claim) Check() error {
	switch {
	case c.ExecTimeout <= 0:
		return errors.New("idemkey: Claim.ExecTimeout must be positive")
	case c.ID.Key == "":
		return nil
	case !printableText(c.ID.Namespace, MaxNamespace):
		return fmt.Errorf("idemkey: Claim.ID.Namespace must be 1 to %d printable bytes", MaxNamespace)
	case !printableText(c.ID.Scope, MaxScope):
		return fmt.Errorf("idemkey: Claim.ID.Scope must be 1 to %d printable bytes", MaxScope)
	case !printableText(c.ID.Key, MaxKey):
		return fmt.Errorf("idemkey: Claim.ID.Key must be at most %d printable bytes", MaxKey)
	case len(c.FP.Sum) == 0 || c.FP.Alg == "":
		return errors.New("idemkey: Claim.FP is empty")
	case c.Lease <= 0:
		return errors.New("idemkey: Claim.Lease must be positive")
	case c.TTL < c.Lease && !c.External:
		return errors.New("idemkey: Claim.TTL must be at least the lease")
	}
	return nil
}

// printableText reports whether s is 1 to limit bytes that a database text and a log
// line can hold.
func printableText(s string, limit int) bool {
	return s != "" && len(s) <= limit && findOddByte(s) < 0
}

// findOddByte returns where s has a control character or is no UTF-8, and -1 if it is text.
func findOddByte(s string) int {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r < 0x20 || r == 0x7f || r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

// A Record is what a store remembers of an identity. Expired and LeaseLeft are
// by the store's clock: no application host's clock decides anything.
type Record struct {
	State     State
	FP        Fingerprint
	Attempt   int    // the run that is in progress, failed or completed; 1-based
	Run       string // names that run among all of the key; empty: none can be recovered
	LeaseLeft time.Duration
	Age       time.Duration // since it was made
	LifeLeft  time.Duration // until it expires; 0: the store does not say
	ExpiresAt time.Time     // zero: not before its outcome is known
	Expired   bool
	Decided   bool     // of StateFailed: somebody has decided that it runs again, whatever MaxAttempts says
	Response  Response // of StateCompleted and StateTombstone
}

// Check returns [ErrRecordCorrupt] if no store has written a record like r: its state or attempt does not
// exist. Stores call it before [Claim.Judge], which would let such a request run again.
func (r *Record) Check() error {
	if r.State < StateInProgress || r.State > StateUnknown || r.Attempt < 1 {
		return fmt.Errorf("%w: state %d, attempt %d", ErrRecordCorrupt, r.State, r.Attempt)
	}
	return nil
}

// A Response is the part of a handler's answer that is kept.
type Response struct {
	Status  int
	Header  http.Header // only what the allow-list lets through
	Body    []byte
	Dropped bool   // the body is not to be kept: keep a tombstone
	KeyID   string // names the key that Body is sealed with; empty: it is not
}

// State returns the state that keeping r leads to.
func (r *Response) State() State {
	if r.Dropped {
		return StateTombstone
	}
	return StateCompleted
}

// cloneResponse copies what others could change.
func (r *Response) cloneResponse() Response {
	c := *r
	c.Header, c.Body = r.Header.Clone(), slices.Clone(r.Body)
	return c
}

// A Kind is the answer to a Claim.
type Kind uint8

// The decisions of Begin.
const (
	KindProceed     Kind = iota + 1 // run the handler: the caller owns the identity
	KindReplay                      // answer with the record's response
	KindInFlight                    // another owner is running it
	KindMismatch                    // the key was first used for a different request
	KindExpired                     // the record has expired and the claim rejects that
	KindNotRetained                 // it has run, and its body was not kept
	KindUnknown                     // its outcome is not known, and it must not run again unasked

	// KindFingerprintUnknown: the record was made with settings that the claim has not, so it is
	// not known whether the request is the same. It must neither run nor be replayed.
	KindFingerprintUnknown
)

var kindNames = [...]string{KindProceed: "proceed", KindReplay: "replay", KindInFlight: "in flight", KindMismatch: "mismatch",
	KindExpired: "expired", KindNotRetained: "not retained", KindUnknown: "unknown", KindFingerprintUnknown: "fingerprint unknown"}

// String is for messages.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// A Decision is the result of Begin. Exec is set for KindProceed only, Record for
// KindReplay and KindNotRetained only, RetryAfter for KindInFlight only, FPAlg for
// KindFingerprintUnknown only.
type Decision struct {
	Kind Kind
	Exec Execution

	// Incarnation, of KindProceed, tells the record from those that the identity had before,
	// and may have after it has expired: 1 to 24 of A-Z a-z 0-9 _. All attempts of a record have
	// the same one. Sagas that the request begins are named after it, so that a key which is used
	// again begins another saga. A store that loses the record should make the same one for a retry, as those of this
	// module do almost always. Empty: the store does not say.
	Incarnation string

	Attempt    int       // of KindProceed, and the vanished one of KindUnknown; 1-based
	Run        string    // of KindUnknown: the record's
	TookOver   bool      // of KindProceed: the attempt before never ended; its owner has vanished
	Unsettled  bool      // of KindProceed: see [Claim.LeavesUnknown]
	ExpiresAt  time.Time // of KindProceed: when the record's life ends
	Record     *Record
	RetryAfter time.Duration
	FPAlg      string // of the record's fingerprint; empty: the store does not say
}

// Judge decides c by an existing record. It is the whole reading side of the
// state machine, the same for every store. KindProceed means that the record may
// be taken over: the store must do so by compare and set, and answers
// KindInFlight if another was faster.
func (c *Claim) Judge(rec *Record) Kind {
	live := rec.State == StateInProgress && rec.LeaseLeft > 0
	unknown := rec.State == StateUnknown || rec.State == StateInProgress && !live && c.External
	over := rec.Expired && !live && !unknown
	switch {
	case over && rec.State == StateInProgress:
		return KindProceed // nothing was committed, and a sweep might have removed it already
	case over && c.RejectExpired:
		return KindExpired
	case over:
		return KindProceed
	case !c.matchesStored(rec.FP):
		return c.refusalOf(rec.FP.Alg) // also while in flight: waiting would not help
	case live:
		return KindInFlight
	case rec.State == StateCompleted:
		return KindReplay
	case rec.State == StateTombstone:
		return KindNotRetained
	case unknown && !c.foundOut(rec) && rec.Age+c.ExecTimeout >= c.DedupesFor:
		return KindUnknown
	case c.MaxAttempts > 0 && rec.Attempt >= c.MaxAttempts && !c.foundOut(rec) && !(rec.Decided && rec.State == StateFailed):
		return KindUnknown
	}
	return KindProceed
}

// NextAttempt numbers the run that takes rec over.
func (c *Claim) NextAttempt(rec *Record) int {
	if rec.Expired {
		return 1
	}
	return rec.Attempt + 1
}

// TakesOver reports whether the run that takes rec over follows one that never
// ended, and not one that failed. It is for [Decision].TookOver.
func (c *Claim) TakesOver(rec *Record) bool {
	return rec.State == StateInProgress && !rec.Expired
}

// foundOut reports whether rec's run is the one of Recovered. Its attempt alone would not tell: a key that was forgotten
// begins with the first again.
func (c *Claim) foundOut(rec *Record) bool { return c.Recovered != "" && rec.Run == c.Recovered }

// LeavesUnknown reports whether the run that takes rec over follows one whose outcome is unknown, and was not found out. If
// it fails, that says nothing of the earlier run: the outcome stays unknown. It is for [Decision].Unsettled.
func (c *Claim) LeavesUnknown(rec *Record) bool {
	return !c.foundOut(rec) && (rec.State == StateUnknown || rec.State == StateInProgress && c.External)
}

// matchesStored compares every algorithm that both sides know: a record made before
// an upgrade must not turn a retry into a mismatch.
func (c *Claim) matchesStored(stored Fingerprint) bool {
	ok := c.FP.equalsStored(stored)
	for _, prior := range c.Prior {
		ok = prior.equalsStored(stored) || ok
	}
	return ok
}

// refusalOf says why a record's fingerprint by alg does not match. Without a fingerprint by the
// same settings the claim cannot blame the client.
func (c *Claim) refusalOf(alg string) Kind {
	if c.FP.Alg == alg || slices.ContainsFunc(c.Prior, func(prior Fingerprint) bool { return prior.Alg == alg }) {
		return KindMismatch
	}
	return KindFingerprintUnknown
}

// A Store keeps the records. It is free of HTTP, so that other entry points can
// use it too.
type Store interface {
	// Begin claims c.ID or says why not. It never waits for a handler. After
	// KindProceed the caller must end Decision.Exec. When two callers race,
	// one proceeds and the other gets KindInFlight. After an error nothing
	// is claimed, or the claim lapses with its lease; [ErrCapacity] and
	// [ErrRecordCorrupt] are among the errors.
	Begin(ctx context.Context, c Claim) (Decision, error)

	// Sweep deletes up to limit expired records, oldest first, and never one
	// with a live owner. It may run on any number of instances at once.
	Sweep(ctx context.Context, limit int) (int, error)
}

// A Finder is a Store that can decide a claim by the record alone. It claims nothing and waits for no lock.
// decided is false if the request would run: there is no record, or it may be taken over.
type Finder interface {
	Find(ctx context.Context, c Claim) (d Decision, decided bool, err error)
}

// An Execution is the right to run a claimed request once. Exactly one of
// Commit, Reject and Release ends it. If the process dies instead, a
// transactional store rolls the business writes back. The record can be taken
// over once its lease has run out.
type Execution interface {
	// Context returns ctx with what the handler needs, such as the transaction.
	Context(ctx context.Context) context.Context

	// Commit makes the business writes and the record durable together. After
	// nil both are. After [ErrNotStored] the handler's effects stand, without
	// a record. After [ErrLeaseLost], [ErrTxConflict] and a [*CommitError] they
	// are rolled back; after [ErrOutcomeUnknown] the outcome is not known yet.
	Commit(ctx context.Context, r Response) error

	// Reject rolls the business writes back and keeps the response. After an
	// error other than [ErrNotStored] the response is not kept.
	Reject(ctx context.Context, r Response) error

	// Release rolls the business writes back. Bound lets the same request run
	// again, Forget makes the key new, and Hold keeps it until somebody decides. status is the failed response's, for
	// operators who read the table. [ErrLeaseLost] says that another owner has the
	// key already, [ErrTxMisuse] that there is nothing left to roll back.
	Release(ctx context.Context, mode ReleaseMode, status int) error
}

// A Renewer is an Execution whose lease ends by the clock alone. The
// [Middleware] calls Renew every third of the lease while the handler runs.
//
// After nil the lease runs for its full length again, from now. After
// [ErrLeaseLost] another owner may have it, and the handler's context is
// cancelled with that cause. After any other error the lease is as it was.
type Renewer interface {
	Renew(ctx context.Context) error
}

// Traits are the properties of a store that a [Middleware] must know beforehand.
type Traits struct {
	// Transactional: the business writes and the record commit together, or
	// neither does.
	Transactional bool

	// LiveOwners: an owner whose process lives is never overtaken, since its
	// executions are Renewers or hold a lock. A handler may run longer than
	// the lease.
	LiveOwners bool

	// Traceless: a run that was not kept leaves no record. Attempts are not
	// counted and the key of a failed request may be used for another one.
	Traceless bool
}

// A Describer is a [Store] that tells its Traits. Of any other the least is assumed.
type Describer interface {
	Traits() Traits
}

func traitsOf(s Store) Traits {
	if d, ok := s.(Describer); ok {
		return d.Traits()
	}
	return Traits{}
}

// A ReleaseMode says which requests may use a released key.
type ReleaseMode uint8

// How a key is released.
const (
	Bound  ReleaseMode = iota // it stays bound to its fingerprint
	Forget                    // it is forgotten, so a corrected request may use it
	Hold                      // none before a decision: the run may have had its effects, and the record never expires
)

// Errors of a Store or an Execution.
var (
	// ErrCapacity reports that no more requests can run at once. Nothing was claimed.
	ErrCapacity = errors.New("idemkey: too many requests in flight")

	// ErrRecordCorrupt reports a record or stored response that cannot be decoded. It is
	// never answered by running the handler again.
	ErrRecordCorrupt = errors.New("idemkey: stored record is corrupt")

	// ErrRecordHidden reports that a record cannot be read or written although it is there: row-level security of the
	// database hides it, or the handler has removed it. The business writes are rolled back.
	ErrRecordHidden = errors.New("idemkey: the record of the key is hidden by the database, or was removed by the handler")

	// ErrLeaseLost reports that another owner has taken the identity over. The
	// business writes are rolled back, except where [ErrNotStored] comes with it.
	ErrLeaseLost = errors.New("idemkey: another owner has taken the key over")

	// ErrNotStored reports that the response could not be kept, although the
	// handler's effects stand. Only stores without transactions return it.
	ErrNotStored = errors.New("idemkey: the handler ran but its response was not stored")

	// ErrOutcomeUnknown reports that a commit was sent, its result was lost
	// and could not be looked up. A retry with the same key finds out.
	ErrOutcomeUnknown = errors.New("idemkey: the outcome of the commit is unknown")

	// ErrTxMisuse reports that the handler ended the transaction itself. Its
	// commits stand, and the key will never run again.
	ErrTxMisuse = errors.New("idemkey: the handler ended the managed transaction")

	// ErrTxConflict reports a serialization failure or a deadlock. The business
	// writes are rolled back and a retry is likely to succeed.
	ErrTxConflict = errors.New("idemkey: the transaction conflicted with another")

	// ErrNotCommitted reports that the database refused to commit. The business
	// writes are rolled back.
	ErrNotCommitted = errors.New("idemkey: the transaction was not committed")
)

// A QuotaError is an [ErrCapacity] that lasts until records expire, and not only
// until handlers return.
type QuotaError struct {
	Limit  int    // live records of one scope
	Option string // that sets it
}

// Error names the option.
func (e *QuotaError) Error() string {
	return fmt.Sprintf("idemkey: one scope has %d live records, the quota of %s", e.Limit, e.Option)
}

// Is lets errors.Is find ErrCapacity.
func (*QuotaError) Is(target error) bool { return target == ErrCapacity }

// An UnknownLimitError is an [ErrCapacity] that lasts until somebody decides about outcomes of the scope that are not
// known.
type UnknownLimitError struct{ Limit int }

// Error names the option.
func (e *UnknownLimitError) Error() string {
	return fmt.Sprintf("idemkey: one scope has %d requests whose outcome is not known, the limit of Options.Limits.MaxUnknownPerScope", e.Limit)
}

// Is lets errors.Is find ErrCapacity.
func (*UnknownLimitError) Is(target error) bool { return target == ErrCapacity }

// A CommitError is an [ErrNotCommitted] that carries the database's reason,
// such as a deferred constraint.
type CommitError struct{ Err error }

// Error names the fact first and the reason after it.
func (e *CommitError) Error() string { return fmt.Sprintf("%v: %v", ErrNotCommitted, e.Err) }

// Unwrap lets errors.Is find ErrNotCommitted and errors.As the reason.
func (e *CommitError) Unwrap() []error { return []error{ErrNotCommitted, e.Err} }
