// Package load is the clients of a chaos run. They are goroutines of the run's process, which no fault kills.
// They keep the client's side of the Idempotency-Key contract: they resend a request under the same key until
// it has a final answer. Each request with its answer is a record.Op.
//
// The seed determines the requests: for the n-th saga its kind, tenant, key, amount and number of concurrent
// clients. It also determines whether the key is reused, and when the saga is cancelled. The seed does not
// determine the answers or their times.
package load

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/backoff"
)

// Options are what a Load needs. All are required but Overtime.
type Options struct {
	Seed   uint64
	Run    record.Options // Storm, Sagas, Trips, and Clients: how many sagas are begun at the same time
	Orders []string       // URLs of the order service's processes
	Trips  []string       // URLs of the trip service's processes
	Ops    *record.Writer[record.Op]
	Now    func() record.At

	Overtime time.Duration // how long after the storm missing sagas are still begun; default: Run.Storm, at least a minute
}

const minOvertime = time.Minute

// A Load begins sagas.
type Load struct {
	opts   Options
	client *http.Client
	urls   map[string][]string
	next   atomic.Int64 // number of the saga to be begun next
	begun  atomic.Int64
	open   atomic.Int64

	abort atomic.Pointer[context.CancelFunc] // nil: Run was not called yet
}

// NewLoad returns a Load. It begins nothing: call [Load.Run].
func NewLoad(o Options) (*Load, error) {
	switch {
	case o.Run.Clients < 1 || o.Run.Sagas < 1 || o.Run.Storm <= 0:
		return nil, errors.New("load: Clients, Sagas and Storm must be positive")
	case o.Run.Trips < 100 && len(o.Orders) == 0 || o.Run.Trips > 0 && len(o.Trips) == 0:
		return nil, errors.New("load: a service that is asked for has no URL")
	case o.Ops == nil || o.Now == nil:
		return nil, errors.New("load: Ops and Now are required")
	}
	if o.Overtime == 0 {
		o.Overtime = max(o.Run.Storm, minOvertime)
	}
	return &Load{
		opts: o, client: newClient(o.Run.Clients),
		urls: map[string][]string{record.Order: o.Orders, record.Trip: o.Trips},
	}, nil
}

// OpenSagas returns how many requests are under way.
func (l *Load) OpenSagas() int { return int(l.open.Load()) }

// BegunSagas returns how many sagas have been begun.
func (l *Load) BegunSagas() int { return int(l.begun.Load()) }

// AbortRequests ends a running Run and cancels its requests at once.
func (l *Load) AbortRequests() {
	if end := l.abort.Load(); end != nil {
		(*end)()
	}
}

// Run begins sagas at the pace that spreads Run.Sagas over Run.Storm. It goes on until ctx has ended and
// Run.Sagas are begun, or until Overtime after ctx's end. It returns when every client has its final answer or
// has given up. A client gives up on a request after [Patience], even if ctx has ended. The error reports that
// too few sagas were begun. Run may be called once.
func (l *Load) Run(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // limits all requests
	defer end()
	l.abort.Store(&end)
	late, cancel := context.WithCancel(life) // limits when sagas are begun
	defer cancel()
	var overtime, clients sync.WaitGroup
	overtime.Go(func() {
		select {
		case <-ctx.Done():
			_ = backoff.Sleep(late, l.opts.Overtime)
			cancel()
		case <-late.Done():
		}
	})
	p := paceOf(l.opts.Run.Storm, l.opts.Run.Sagas)
	for c := range l.opts.Run.Clients {
		clients.Go(func() {
			for s, ok := l.takeSaga(ctx, late, p); ok; s, ok = l.takeSaga(ctx, late, p) {
				l.placeSaga(life, s, c)
			}
		})
	}
	clients.Wait()
	cancel()
	overtime.Wait()
	l.client.CloseIdleConnections()
	if l.BegunSagas() < l.opts.Run.Sagas {
		return errors.New("load: not all sagas were begun in time")
	}
	return nil
}

// takeSaga returns the next saga when it is due. It returns none once late has ended, or ctx has ended and
// enough sagas are begun.
func (l *Load) takeSaga(ctx, late context.Context, p pace) (saga, bool) {
	n := int(l.next.Add(1)) - 1
	until := late
	if n >= l.opts.Run.Sagas {
		until = ctx
	}
	p.waitForTurn(until, n)
	if until.Err() != nil || late.Err() != nil {
		return saga{}, false
	}
	l.begun.Add(1)
	return planSaga(l.opts.Seed, n, l.opts.Run.Trips), true
}

// placeSaga begins a saga with as many clients as it has copies, then looks, cancels or reuses the key as
// planned.
func (l *Load) placeSaga(ctx context.Context, s saga, client int) {
	path := "/orders"
	if s.kind.Saga == record.Trip {
		path = "/trips"
	}
	var id string
	var copies sync.WaitGroup
	for c := range s.copies {
		copies.Go(func() {
			tries := firstTries
			if c > 0 {
				tries = copyTries
			}
			a := l.requestUntilAnswered(ctx, request{saga: &s, client: client*maxCopies + c, method: http.MethodPost, path: path, body: s.body, tries: tries})
			if c == 0 {
				id = a.id
			}
		})
	}
	copies.Wait()
	if id == "" {
		return // given up: the saga may or may not exist
	}
	again := request{saga: &s, client: client * maxCopies, tries: copyTries}
	if s.cancel > 0 {
		_ = backoff.Sleep(ctx, s.cancel)
		again.method, again.path, again.tries = http.MethodDelete, path+"/"+id, firstTries
		l.requestUntilAnswered(ctx, again)
	}
	if s.other != nil {
		again.method, again.path, again.body = http.MethodPost, path, s.other
		l.requestUntilAnswered(ctx, again)
	}
	if s.look {
		again.method, again.path, again.body, again.tries = http.MethodGet, path+"/"+id, nil, 1
		l.requestUntilAnswered(ctx, again)
	}
}
