package idempg

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/sagamill/sagamill/internal/guard"
)

// An opener opens the transactions of handlers that have sent no statement yet, while their leases still
// protect them. All wait equally long, so one timer serves the whole store.
type opener struct {
	after time.Duration

	mu      sync.Mutex
	waiting list.List // of *execution, the oldest first
	armed   bool      // the timer runs
}

// addExecution lets e's transaction be opened, for at most limit, unless e is removed before.
func (o *opener) addExecution(e *execution, limit time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e.openBy, e.openLimit = time.Now().Add(o.after), limit
	e.waiting = o.waiting.PushBack(e)
	if !o.armed {
		o.armed = true
		time.AfterFunc(o.after, o.openDue)
	}
}

// removeExecution reports whether e was still waiting. If not, e.hurry ends the opening.
func (o *opener) removeExecution(e *execution) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.waiting == nil {
		return false
	}
	o.waiting.Remove(e.waiting)
	e.waiting = nil
	return true
}

// openDue opens the transactions that are due, and arms the timer for the next one.
func (o *opener) openDue() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for e := o.oldestWaiting(); e != nil; e = o.oldestWaiting() {
		if left := time.Until(e.openBy); left > 0 {
			time.AfterFunc(left, o.openDue)
			return
		}
		o.waiting.Remove(e.waiting)
		e.waiting = nil
		var ctx context.Context
		ctx, e.hurry = context.WithTimeout(context.Background(), e.openLimit)
		go func() { // ends with e, which waits for the transaction's turn and hurries it
			defer e.hurry()
			_ = guard.Call(func() error { return e.tx.Open(ctx) }) // the handler's next statement returns its error
		}()
	}
	o.armed = false
}

func (o *opener) oldestWaiting() *execution {
	if front := o.waiting.Front(); front != nil {
		return front.Value.(*execution)
	}
	return nil
}
