package idemkey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/guard"
)

// An UnknownOutcome is a record whose outcome is not known: its run was released with [Hold], or the run's owner has
// vanished.
type UnknownOutcome struct {
	ID       Identity
	Attempt  int           // the run whose outcome is unknown
	Since    time.Time     // when the key was claimed first, by the store's clock
	EndedFor time.Duration // time since the run, or the lease of its vanished owner, ended
	Token    string        // names the run that a decision is about
	FPAlg    string        // of the record's [Fingerprint]
}

// An Arbiter is a [Store] that lists unknown outcomes and takes decisions about them.
type Arbiter interface {
	// EachUnknown calls found for each unknown outcome, until found returns an error. The list may also have a run
	// whose owner lives and has not renewed its lease; Settle refuses to decide about it.
	EachUnknown(ctx context.Context, found func(UnknownOutcome) error) error

	// Settle decides about u: it keeps r for the retries, or, if r is nil, lets the same request run again. The record
	// then lives for ttl from now on. Settle returns [ErrDecided] and changes nothing if the record has changed since
	// it was listed, or if the owner lives. It never changes a completed record. After any other error it is not known
	// whether the record has changed.
	Settle(ctx context.Context, u UnknownOutcome, r *Response, ttl time.Duration) error
}

// ErrDecided reports that there is nothing to decide: the outcome of the run that was listed is known, another run has
// begun, or the owner lives.
var ErrDecided = errors.New("idemkey: the outcome is not unknown any more, or its owner lives")

// DefaultReconcileEvery is how often a [Reconciler] looks by default.
const DefaultReconcileEvery = time.Minute

// A Reconciler asks Options.Recover about unknown outcomes, so that they are settled even if the client never comes
// back. A client's retry asks as well. Any number of Reconcilers may run at once: each decision compares the record
// with the one that was listed.
type Reconciler struct {
	m     *Middleware
	store Arbiter
	opts  ReconcilerOptions
}

// ReconcilerOptions configure a [Reconciler].
type ReconcilerOptions struct {
	Every time.Duration // time between two looks at all unknown outcomes; default: 1 min
	After time.Duration // how long a run must be over before Recover is asked about it, because its call may still be on its way; default: Limits.ExecTimeout
}

// NewReconciler returns a Reconciler for the keys of m, which must have Options.Recover. A nil opts means the defaults.
//
// It asks about all keys of m's namespace. If routes have different Recover functions, give each a Key.Namespace of its
// own.
func NewReconciler(m *Middleware, opts *ReconcilerOptions) (*Reconciler, error) {
	r := &Reconciler{m: m}
	if opts != nil {
		r.opts = *opts
	}
	r.opts.Every = cmp.Or(r.opts.Every, DefaultReconcileEvery)
	r.opts.After = cmp.Or(r.opts.After, m.opts.Limits.ExecTimeout)
	var ok bool
	switch r.store, ok = m.store.(Arbiter); {
	case !ok:
		return nil, fmt.Errorf("idemkey: a %T cannot be told of outcomes: it is no Arbiter", m.store)
	case m.opts.Recover == nil:
		return nil, errors.New("idemkey: a Reconciler needs Options.Recover")
	case r.opts.Every < 0 || r.opts.After < 0:
		return nil, errors.New("idemkey: ReconcilerOptions must not be negative")
	}
	return r, nil
}

// Run calls Reconcile at once and then every ReconcilerOptions.Every, until ctx ends. Errors are logged, and what
// failed is tried again the next time.
func (r *Reconciler) Run(ctx context.Context) {
	ticker := time.NewTicker(r.opts.Every)
	defer ticker.Stop()
	for {
		if n, err := r.Reconcile(ctx); err != nil && ctx.Err() == nil {
			r.m.opts.Logger.ErrorContext(ctx, "idemkey: reconcile unknown outcomes", "settled", n, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Reconcile asks Recover about each unknown outcome once, and returns how many it has settled. An error of Recover
// leaves its record as it was; Reconcile goes on, and returns the first of them.
func (r *Reconciler) Reconcile(ctx context.Context) (settled int, err error) {
	var first error
	err = r.store.EachUnknown(ctx, func(u UnknownOutcome) error {
		if !r.isOurs(u.ID) || u.EndedFor < r.opts.After {
			return nil
		}
		done, err := r.settleOne(ctx, u)
		if done {
			settled++
		}
		if first == nil && err != nil && !errors.Is(err, ErrDecided) {
			first = err
		}
		return ctx.Err()
	})
	return settled, cmp.Or(err, first)
}

// isOurs reports whether id may be of a request through the middleware.
func (r *Reconciler) isOurs(id Identity) bool {
	own := r.m.opts.Key.Namespace
	return id.Namespace == own || r.m.opts.ScopeByRoute && strings.HasPrefix(id.Namespace, own+":")
}

func (r *Reconciler) settleOne(ctx context.Context, u UnknownOutcome) (done bool, err error) {
	var found *Response
	ask, cancel := context.WithTimeout(ctx, r.m.opts.Limits.Lease/2)
	defer cancel()
	err = guard.Apart(func() (err error) {
		found, err = r.m.opts.Recover(ask, u.ID)
		return err
	})
	if err == nil {
		err = checkRecovered(ask, found)
	}
	if err != nil {
		return false, err
	}
	ttl := r.m.opts.Limits.TTL
	var kept *Response
	if found == nil {
		ttl = cmp.Or(r.m.opts.Limits.FailedTTL, ttl)
	} else {
		resp := found.cloneResponse()
		r.m.opts.dropUnkept(resp.Header)
		if kept, err = r.storedForm(ctx, &u, &resp); err != nil {
			return false, err
		}
	}
	call, cancelCall := context.WithTimeout(ctx, r.m.opts.Limits.CompleteTimeout)
	defer cancelCall()
	if err := r.store.Settle(call, u, kept, ttl); err != nil {
		return false, err
	}
	return true, nil
}

// storedForm returns what is kept of resp. Redact gets a request without headers and body: the client's is not there.
func (r *Reconciler) storedForm(ctx context.Context, u *UnknownOutcome, resp *Response) (*Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody)
	if err != nil {
		return nil, err
	}
	var stored Response
	err = guard.Apart(func() (err error) {
		stored, _, err = r.m.opts.storedForm(req, u.ID, u.FPAlg, resp)
		return err
	})
	return &stored, err
}
