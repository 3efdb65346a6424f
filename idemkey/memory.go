package idemkey

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sagamill/sagamill/internal/sagaid"
)

// DefaultMaxEntries is how many records a [Memory] holds by default.
const DefaultMaxEntries = 100_000

// MemoryOptions configure a [Memory].
type MemoryOptions struct {
	MaxEntries int // largest number of records; a full store removes expired records, and refuses new keys if no record has expired; default: 100,000

	// MaxPerScope is the largest number of records that one scope has in one namespace, so that one caller
	// cannot fill the whole store. Default: MaxEntries.
	MaxPerScope int
}

// A Memory is a [Store] in this process's memory, for tests, examples and
// single-process services. It has no transactions: the effects of a handler that
// fails stay, and a restart forgets every key.
type Memory struct {
	max, maxPerScope int
	now              func() time.Time

	mu       sync.Mutex
	entries  map[Identity]*entry
	perScope map[Identity]int             // how many entries there are of an identity without its key
	external map[Identity]map[*entry]bool // those whose outcome is or may become unknown, by identity without its key
	byAge    ageHeap
}

// An entry is a record, with the fields that only its owner and the heap need.
type entry struct {
	id  Identity
	rec Record

	incarnation string
	created     time.Time
	ttl, failed time.Duration // lives that begin at the end of a run; 0: none does
	lease       time.Duration
	leaseUntil  time.Time
	owner       *memoryExecution // only its outcome counts
	index       int              // in byAge
}

// NewMemory returns an empty Memory. A nil opts means the defaults.
func NewMemory(opts *MemoryOptions) (*Memory, error) {
	m := &Memory{now: time.Now, entries: make(map[Identity]*entry), perScope: make(map[Identity]int), external: make(map[Identity]map[*entry]bool)}
	if opts == nil {
		opts = &MemoryOptions{}
	}
	m.max = cmp.Or(opts.MaxEntries, DefaultMaxEntries)
	m.maxPerScope = cmp.Or(opts.MaxPerScope, m.max)
	switch {
	case m.max < 0:
		return nil, errors.New("idemkey: MemoryOptions.MaxEntries must be positive")
	case m.maxPerScope < 0:
		return nil, errors.New("idemkey: MemoryOptions.MaxPerScope must be positive")
	}
	return m, nil
}

// Traits says that owners are kept alive by renewing their leases.
func (m *Memory) Traits() Traits { return Traits{LiveOwners: true} }

// Begin claims c.ID or says why not. Of two callers that race, one proceeds.
func (m *Memory) Begin(_ context.Context, c Claim) (Decision, error) {
	if err := c.Check(); err != nil {
		return Decision{}, err
	}
	if c.ID.Key == "" {
		return Decision{Kind: KindProceed, Exec: keyless{}, Attempt: 1}, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	e := m.entries[c.ID]
	if e == nil {
		if err := m.checkUnknown(&c, now); err != nil {
			return Decision{}, err
		}
		if err := m.makeRoom(c.ID, now); err != nil {
			return Decision{}, err
		}
		return m.claimEntry(&entry{id: c.ID}, c, 1, now), nil
	}
	rec := e.readRecord(now)
	kind := c.Judge(&rec)
	if kind == KindProceed {
		attempt := c.NextAttempt(&rec)
		if attempt == 1 {
			if err := m.checkUnknown(&c, now); err != nil {
				return Decision{}, err
			}
		}
		d := m.claimEntry(e, c, attempt, now)
		d.TookOver, d.Unsettled = c.TakesOver(&rec), c.LeavesUnknown(&rec)
		return d, nil
	}
	if kind == KindUnknown && c.External && !rec.ExpiresAt.IsZero() && e.isUnknown(now) { // it was claimed without External
		e.rec.ExpiresAt = never
		heap.Fix(&m.byAge, e.index)
		m.noteExternal(e)
	}
	return rec.decisionOf(kind), nil
}

// Find decides c by the record alone and claims nothing. It is not decided where
// the request would run.
func (m *Memory) Find(_ context.Context, c Claim) (d Decision, decided bool, err error) {
	if err := c.Check(); err != nil || c.ID.Key == "" {
		return Decision{}, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[c.ID]
	if e == nil {
		return Decision{}, false, nil
	}
	rec := e.readRecord(m.now())
	kind := c.Judge(&rec)
	if kind == KindProceed {
		return Decision{}, false, nil
	}
	return rec.decisionOf(kind), true, nil
}

// decisionOf makes a decision of kind, which is not KindProceed.
func (r *Record) decisionOf(kind Kind) Decision {
	if kind == KindInFlight {
		return Decision{Kind: kind, RetryAfter: r.LeaseLeft}
	}
	if kind == KindUnknown {
		return Decision{Kind: kind, Attempt: r.Attempt, Run: r.Run}
	}
	if kind == KindFingerprintUnknown {
		return Decision{Kind: kind, FPAlg: r.FP.Alg}
	}
	return Decision{Kind: kind, Record: r}
}

// sweepWhenFull is how many expired records a full store removes at a time.
const sweepWhenFull = 100

// makeRoom removes expired records until id's record fits. An error says which limit is reached. mu is held.
func (m *Memory) makeRoom(id Identity, now time.Time) error {
	for m.perScope[id.withoutKey()] >= m.maxPerScope || len(m.entries) >= m.max {
		if m.sweepExpired(now, sweepWhenFull) > 0 {
			continue
		}
		if len(m.entries) >= m.max {
			return fmt.Errorf("%w: %d records, the limit of MemoryOptions.MaxEntries, none of them expired", ErrCapacity, m.max)
		}
		return &QuotaError{Limit: m.maxPerScope, Option: "MemoryOptions.MaxPerScope"}
	}
	return nil
}

// checkUnknown returns an [*UnknownLimitError] if too many outcomes of the scope are unknown. mu is held.
func (m *Memory) checkUnknown(c *Claim, now time.Time) error {
	if c.MaxUnknown == 0 {
		return nil
	}
	unknown := 0
	for e := range m.external[c.ID.withoutKey()] {
		if e.isUnknown(now) {
			unknown++
		}
	}
	if unknown >= c.MaxUnknown {
		return &UnknownLimitError{Limit: c.MaxUnknown}
	}
	return nil
}

// withoutKey returns what the records of one scope share.
func (id Identity) withoutKey() Identity { return Identity{Namespace: id.Namespace, Scope: id.Scope} }

// claimEntry makes the caller the owner of e, which may be new. mu is held.
func (m *Memory) claimEntry(e *entry, c Claim, attempt int, now time.Time) Decision {
	if m.entries[e.id] == e {
		m.removeEntry(e)
	}
	if attempt == 1 {
		e.incarnation, e.created = sagaid.NewLife(e.id.Namespace, e.id.Scope, e.id.Key, c.TTL).Incarnation(now), now
	}
	e.rec = Record{State: StateInProgress, FP: c.FP, Attempt: attempt, Run: rand.Text(), ExpiresAt: now.Add(c.TTL)}
	e.ttl, e.failed = 0, c.FailedTTL
	scope := e.id.withoutKey()
	if c.External {
		e.rec.ExpiresAt, e.ttl, e.failed = never, c.TTL, cmp.Or(c.FailedTTL, c.TTL)
		m.noteExternal(e)
	}
	e.lease, e.leaseUntil = c.Lease, now.Add(c.Lease)
	e.owner = &memoryExecution{m, e}
	m.entries[e.id] = e
	m.perScope[scope]++
	heap.Push(&m.byAge, e)
	return Decision{Kind: KindProceed, Exec: e.owner, Incarnation: e.incarnation, Attempt: attempt, ExpiresAt: e.readRecord(now).ExpiresAt}
}

// never is when a record expires whose outcome is not known.
var never = time.Unix(1<<40, 0)

// endRun gives e its life from now on, if that begins at the end of a run. mu is held.
func (m *Memory) endRun(e *entry, life time.Duration) {
	m.forgetExternal(e)
	if life > 0 {
		e.rec.ExpiresAt = m.now().Add(life)
		heap.Fix(&m.byAge, e.index)
	}
}

// noteExternal notes that the outcome of e is, or may become, unknown. mu is held.
func (m *Memory) noteExternal(e *entry) {
	scope := e.id.withoutKey()
	if m.external[scope] == nil {
		m.external[scope] = make(map[*entry]bool)
	}
	m.external[scope][e] = true
}

// forgetExternal notes that the outcome of e is known. mu is held.
func (m *Memory) forgetExternal(e *entry) {
	scope := e.id.withoutKey()
	if delete(m.external[scope], e); len(m.external[scope]) == 0 {
		delete(m.external, scope)
	}
}

// newIncarnation returns 65 random bits, for a run without a record.
func newIncarnation() string { return strings.ToLower(rand.Text()[:13]) }

// removeEntry removes e. Its owner, if there is one, gets ErrLeaseLost from then on. mu is held.
func (m *Memory) removeEntry(e *entry) {
	heap.Remove(&m.byAge, e.index)
	delete(m.entries, e.id)
	e.owner = nil
	m.forgetExternal(e)
	scope := e.id.withoutKey()
	if m.perScope[scope]--; m.perScope[scope] == 0 {
		delete(m.perScope, scope)
	}
}

// readRecord returns a copy of the record as of now.
func (e *entry) readRecord(now time.Time) Record {
	rec := e.rec
	rec.Age = now.Sub(e.created)
	rec.LeaseLeft = max(0, e.leaseUntil.Sub(now))
	rec.LifeLeft = max(0, rec.ExpiresAt.Sub(now))
	rec.Expired = !now.Before(rec.ExpiresAt)
	if rec.ExpiresAt.Equal(never) {
		rec.ExpiresAt, rec.LifeLeft = time.Time{}, 0
	}
	rec.Response = rec.Response.cloneResponse()
	return rec
}

// EachUnknown calls found for each unknown outcome.
func (m *Memory) EachUnknown(_ context.Context, found func(UnknownOutcome) error) error {
	for _, u := range m.listUnknown() {
		if err := found(u); err != nil {
			return err
		}
	}
	return nil
}

func (m *Memory) listUnknown() (all []UnknownOutcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for _, scope := range m.external {
		for e := range scope {
			if e.isUnknown(now) {
				all = append(all, UnknownOutcome{ID: e.id, Attempt: e.rec.Attempt, Since: e.created, EndedFor: now.Sub(e.leaseUntil), Token: e.rec.Run, FPAlg: e.rec.FP.Alg})
			}
		}
	}
	slices.SortFunc(all, func(a, b UnknownOutcome) int { return a.Since.Compare(b.Since) })
	return all
}

func (e *entry) isUnknown(now time.Time) bool {
	return e.rec.State == StateUnknown || e.rec.State == StateInProgress && !now.Before(e.leaseUntil)
}

// Settle ends the unknown outcome u.
func (m *Memory) Settle(_ context.Context, u UnknownOutcome, r *Response, ttl time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[u.ID]
	if e == nil || e.rec.Run != u.Token || !m.external[u.ID.withoutKey()][e] || !e.isUnknown(m.now()) {
		return ErrDecided
	}
	e.owner = nil
	e.rec.State, e.rec.Decided, e.rec.Run = StateFailed, true, rand.Text()
	if r != nil {
		e.rec.State, e.rec.Response = r.State(), r.cloneResponse()
	}
	m.endRun(e, ttl)
	return nil
}

// Sweep deletes up to limit expired records, oldest first.
func (m *Memory) Sweep(_ context.Context, limit int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sweepExpired(m.now(), limit), nil
}

// sweepExpired removes up to limit records. It stops at the first that has not expired or has a live owner.
// mu is held.
func (m *Memory) sweepExpired(now time.Time, limit int) int {
	n := 0
	for ; n < limit && len(m.byAge) > 0; n++ {
		e := m.byAge[0]
		rec := e.readRecord(now)
		if !rec.Expired || rec.State == StateInProgress && rec.LeaseLeft > 0 {
			break
		}
		m.removeEntry(e)
	}
	return n
}

// A memoryExecution owns entry for as long as entry.owner is it.
type memoryExecution struct {
	m     *Memory
	entry *entry
}

func (x *memoryExecution) Context(ctx context.Context) context.Context { return ctx }

// Renew makes the lease run for its full length again, even if it has run out and no other claim has come.
// [ErrLeaseLost]: another owner has taken over.
func (x *memoryExecution) Renew(context.Context) error {
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	e := x.entry
	if e.owner != x || e.rec.State != StateInProgress {
		return ErrLeaseLost
	}
	e.leaseUntil = x.m.now().Add(e.lease)
	return nil
}

// Commit keeps r, unless another owner has taken over: then [ErrNotStored]
// and [ErrLeaseLost].
func (x *memoryExecution) Commit(_ context.Context, r Response) error { return x.keepEntry(r) }

// Reject is Commit: there is nothing to roll back.
func (x *memoryExecution) Reject(_ context.Context, r Response) error { return x.keepEntry(r) }

func (x *memoryExecution) keepEntry(r Response) error {
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	e := x.entry
	if e.owner != x || e.rec.State != StateInProgress {
		return fmt.Errorf("%w: %w", ErrNotStored, ErrLeaseLost)
	}
	e.rec.State, e.rec.Response = r.State(), r.cloneResponse()
	x.m.endRun(e, e.ttl)
	return nil
}

// Release lets the key go, unless another owner has it by now.
func (x *memoryExecution) Release(_ context.Context, mode ReleaseMode, status int) error {
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	e := x.entry
	if e.owner != x || e.rec.State != StateInProgress {
		return nil
	}
	switch mode {
	case Forget:
		x.m.removeEntry(e)
	case Hold:
		e.rec.State, e.rec.Response.Status, e.rec.ExpiresAt, e.leaseUntil = StateUnknown, status, never, x.m.now()
		x.m.noteExternal(e)
		heap.Fix(&x.m.byAge, e.index)
	default:
		e.rec.State, e.rec.Response.Status = StateFailed, status
		x.m.endRun(e, e.failed)
	}
	return nil
}

// keyless runs a request that is not remembered, on a store without transactions.
type keyless struct{}

func (keyless) Context(ctx context.Context) context.Context     { return ctx }
func (keyless) Commit(context.Context, Response) error          { return nil }
func (keyless) Reject(context.Context, Response) error          { return nil }
func (keyless) Release(context.Context, ReleaseMode, int) error { return nil }

// An ageHeap has the entry that expires first at the top.
type ageHeap []*entry

func (h ageHeap) Len() int           { return len(h) }
func (h ageHeap) Less(i, j int) bool { return h[i].rec.ExpiresAt.Before(h[j].rec.ExpiresAt) }
func (h ageHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is heap.Interface's.
func (h *ageHeap) Push(x any) {
	e := x.(*entry)
	e.index = len(*h)
	*h = append(*h, e)
}

// Pop is heap.Interface's.
func (h *ageHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
