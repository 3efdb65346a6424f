package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
)

// A Placement is one order or trip of a demo, as its clients see it.
type Placement struct {
	Tenant, Key string
	Copies      int // clients that place it at the same time

	Replies [][]byte // one for each client
	ID      string
}

// NewPlacement returns the i-th placement. Each tenant has the same keys.
func (p *Program) NewPlacement(i, copies int) Placement {
	return Placement{Tenant: fmt.Sprintf("tenant-%d", i%3), Key: fmt.Sprintf("%s:%d", p.Noun, i/3), Copies: copies}
}

// A Load is everything that a demo places, and its progress.
type Load[T any] struct {
	URL    string
	Client *http.Client
	Items  []T

	// Place places an item. The item is accepted if it returns nil.
	Place func(context.Context, T) error

	// HasEnded asks for an accepted item and reports whether its saga has ended.
	HasEnded func(context.Context, T) bool

	placed, ended, retries atomic.Int64

	mu       sync.Mutex
	accepted []T // since the last call of takeAccepted
}

// PickKind returns the index of the kind of item i. The first items have one kind each, so that a
// small load has all kinds. The others are chosen by shares, of a hundred.
func PickKind(i int, shares []int) int {
	if i < len(shares) {
		return i
	}
	n := rand.IntN(100)
	for k, share := range shares {
		if n -= share; n < 0 {
			return k
		}
	}
	return 0
}

// PlaceAll places every item, with so many clients at the same time.
func (l *Load[T]) PlaceAll(ctx context.Context, clients int) error {
	queue := make(chan T)
	var working sync.WaitGroup
	errs := make([]error, clients)
	for c := range clients {
		working.Go(func() {
			for item := range queue {
				if errs[c] == nil {
					errs[c] = l.PlaceItem(ctx, item)
				}
			}
		})
	}
	for _, item := range l.Items {
		queue <- item
	}
	close(queue)
	working.Wait()
	return errors.Join(errs...)
}

// PlaceItem places one item.
func (l *Load[T]) PlaceItem(ctx context.Context, item T) error {
	err := l.Place(ctx, item)
	l.placed.Add(1)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted = append(l.accepted, item)
	return nil
}

// takeAccepted returns the items that were accepted since the last call.
func (l *Load[T]) takeAccepted() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.accepted
	l.accepted = nil
	return taken
}

// PostCopies posts p from all of its clients at the same time, and sets its replies and its ID.
func (l *Load[T]) PostCopies(ctx context.Context, p *Placement, path, body string) error {
	p.Replies = make([][]byte, p.Copies)
	errs := make([]error, p.Copies)
	var posting sync.WaitGroup
	for i := range p.Replies {
		posting.Go(func() { p.Replies[i], errs[i] = l.PostUntilAccepted(ctx, p, path, body) })
	}
	posting.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var reply struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(p.Replies[0], &reply); err != nil || reply.ID == "" {
		return fmt.Errorf("POST %s answered %.200q", path, p.Replies[0])
	}
	p.ID = reply.ID
	return nil
}

// PostUntilAccepted posts p as one client, until it is accepted.
func (l *Load[T]) PostUntilAccepted(ctx context.Context, p *Placement, path, body string) ([]byte, error) {
	status, reply, err := l.RepeatRequest(ctx, p, http.MethodPost, path, body, func(status int) bool { return status == http.StatusConflict })
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("POST %s: %d %.200s", path, status, reply)
	}
	return reply, err
}

// RepeatRequest keeps the client's side of the Idempotency-Key contract. It sends the same key again
// after a timeout, a broken connection, a 5xx, or a status for which again returns true.
func (l *Load[T]) RepeatRequest(ctx context.Context, p *Placement, method, path, body string, again func(status int) bool) (status int, reply []byte, err error) {
	for try := range 60 {
		if try > 0 {
			l.retries.Add(1)
			_ = backoff.Sleep(ctx, min(50*time.Millisecond<<min(try, 10), 2*time.Second))
		}
		status, reply, err = l.SendRequest(ctx, p, method, path, body)
		switch {
		case ctx.Err() != nil:
			return 0, nil, ctx.Err()
		case err == nil && status < 500 && !again(status):
			return status, reply, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("%d %.200s", status, reply)
	}
	return 0, nil, fmt.Errorf("%s %s: given up: %w", method, path, err)
}

// SendRequest makes one request for the placement's tenant. A POST has the placement's key.
func (l *Load[T]) SendRequest(ctx context.Context, p *Placement, method, path, body string) (status int, reply []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, l.URL+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+p.Tenant)
	if method == http.MethodPost {
		r.Header.Set("Idempotency-Key", p.Key)
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := l.Client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	reply, err = io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	return answer.StatusCode, reply, err
}

// AwaitSagas asks for each accepted item until all items have ended, or ctx has.
func (l *Load[T]) AwaitSagas(ctx context.Context) {
	var open []T
	for ctx.Err() == nil && int(l.ended.Load()) < len(l.Items) {
		open = append(open, l.takeAccepted()...)
		open = slices.DeleteFunc(open, func(item T) bool {
			ended := l.HasEnded(ctx, item)
			if ended {
				l.ended.Add(1)
			}
			return ended
		})
		_ = backoff.Sleep(ctx, 100*time.Millisecond)
	}
}

// placedShare returns the placed part of the load, from 0 to 1.
func (l *Load[T]) placedShare() float64 {
	return float64(l.placed.Load()) / float64(len(l.Items))
}

// printProgress prints a line a second until ctx ends.
func (l *Load[T]) printProgress(ctx context.Context, w io.Writer, f *Fleet) {
	for started := time.Now(); ctx.Err() == nil; {
		_ = backoff.Sleep(ctx, time.Second)
		line := fmt.Sprintf("%4.0fs  placed %d of %d, ended %d", time.Since(started).Seconds(), l.placed.Load(), len(l.Items), l.ended.Load())
		if n := l.retries.Load(); n > 0 {
			line += ", client retries " + strconv.FormatInt(n, 10)
		}
		if n := f.restarts.Load(); n > 0 {
			line += ", processes restarted " + strconv.FormatInt(n, 10)
		}
		fmt.Fprintln(w, line)
	}
}
