package idemkey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/internal/failpoint"
)

// errStreamCut reports a response that ended before the handler meant it to.
var errStreamCut = errors.New("idemkey: the streamed response was cut off")

// A stream is a buffer that lets a successful response through while the handler
// writes it. Before its first byte start has made a tombstone of the record:
// whatever happens from then on, to the handler, the process or the lease, a
// client that saw a success begin is never answered by a second run.
//
// Anything but a 2xx with a body that is to be kept stays a buffer's.
type stream struct {
	*buffer
	start   func() (live bool, err error) // live: the response may be sent
	decided bool                          // start has been called
	live    atomic.Bool                   // its beginning has been sent
	failed  atomic.Bool                   // it has been cut
	err     error                         // why nothing is sent
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(); err != nil {
		return 0, err
	}
	if !s.live.Load() {
		return s.write(p)
	}
	return s.raw.Write(p)
}

// Flush is FlushError for those who do not look at the error.
func (s *stream) Flush() { _ = s.FlushError() }

// FlushError sends what was written so far, the header at least.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(); err != nil {
		return err
	}
	if !s.live.Load() {
		return http.ErrNotSupported
	}
	return http.NewResponseController(s.raw).Flush()
}

// begin decides once, by the status, whether the response is sent as it comes. mu is held.
func (s *stream) begin() error {
	if s.closed.Load() {
		return ErrSettled
	}
	if s.sent == nil {
		s.writeHeader(http.StatusOK)
	}
	if s.decided || s.status >= 300 || !bodyAllowed(s.status) {
		return s.err
	}
	s.decided = true
	s.tidy()
	// With its length the client would take a response for whole before its handler has
	// returned, and with an encoding that has no end it could not tell one that was cut off.
	s.sent.Del("Content-Length")
	s.sent.Del("Transfer-Encoding")
	live, err := s.start()
	if s.err = err; live {
		s.replaceHeader(s.sent)
		s.raw.WriteHeader(s.status)
		s.live.Store(true)
	}
	if s.failed.Load() { // meanwhile: the cut did not know of a response under way
		s.cut()
		return cmp.Or(s.err, ErrSettled)
	}
	return s.err
}

// cut stops what is being sent. A deadline that has passed does so even where a
// recoverer swallows http.ErrAbortHandler, after which the response would end as if
// it were whole. A writer that has no deadlines leaves it to the panic.
func (s *stream) cut() {
	s.failed.Store(true)
	s.refuse() // or the handler could set another deadline
	if s.live.Load() {
		_ = http.NewResponseController(s.raw).SetWriteDeadline(time.Unix(1, 0))
	}
}

// writer returns what the handler of a run writes to. stop ends the renewals of
// its lease, and lost cancels it.
func (x *exchange) writer(exec Execution, state *run, b *buffer, stop func(), lost context.CancelCauseFunc) http.ResponseWriter {
	if !x.m.opts.Response.AllowStreaming {
		return b
	}
	x.stream = &stream{buffer: b}
	x.stream.start = func() (bool, error) {
		verdict := x.verdict(state, b.status)
		if verdict != Keep && verdict != CommitAnyway || !x.r.ProtoAtLeast(1, 1) {
			return false, nil
		}
		stop() // a completed record has no lease to renew
		err := x.bury(exec, b)
		if err != nil {
			lost(err)
		}
		return err == nil, err
	}
	return x.stream
}

// bury keeps a tombstone before a streamed response begins.
func (x *exchange) bury(exec Execution, b *buffer) error {
	written := b.response(x.m.opts.kept, 0)
	written.Body, written.Dropped = nil, true
	resp, err := x.stored(&written)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.detached(), x.m.opts.Limits.CompleteTimeout)
	defer cancel()
	err = cmp.Or(exec.Commit(ctx, resp), failpoint.Hit("idemkey/after-bury"))
	x.open = nil
	if err != nil {
		x.storeFailed(OpCommit, err)
		return err
	}
	x.event.Outcome = OutcomeKept
	x.wake()
	x.markFirst(b)
	return nil
}

// streaming reports that the client has been sent the beginning of a success.
func (x *exchange) streaming() bool { return x.stream != nil && x.stream.live.Load() }

// cutStream stops what is being sent of a response that has failed. A goroutine of
// the handler's that waits for a client which reads nothing would otherwise hold
// up the end of the request.
func (x *exchange) cutStream() {
	if x.stream != nil {
		x.stream.cut()
	}
}

// cutAtEnd cuts a stream when ctx ends: the handler may be in a Write whose client reads nothing. stop
// waits for a cut that has begun.
func (x *exchange) cutAtEnd(ctx context.Context) (stop func()) {
	if x.stream == nil {
		return func() {}
	}
	done := make(chan struct{})
	stopped := context.AfterFunc(ctx, func() {
		defer close(done)
		x.cutStream()
	})
	return func() {
		if !stopped() {
			<-done
		}
	}
}

// endStream ends a response that has begun. One that the handler did not mean to
// end here must not look complete: the connection is cut.
func (x *exchange) endStream(failed error) {
	x.event.Status = x.stream.status
	if failed == nil {
		return
	}
	x.event.Err = fmt.Errorf("%w: %w", errStreamCut, failed)
	x.stream.cut()
	panic(http.ErrAbortHandler)
}

// thrownError describes what a handler has panicked with, which goes no further. It
// must be called while the panic's stack is there. Without a panic the handler has
// ended its goroutine.
func thrownError(thrown any) error {
	switch thrown {
	case nil, http.ErrAbortHandler:
		return errNotReturned
	}
	return fmt.Errorf("%w: %v\n%s", errNotReturned, thrown, debug.Stack())
}

// notStarted answers where no tombstone could be kept, and so nothing was sent.
// The key is not released: what the handler did until then stands, and the next
// request finds a run whose owner has vanished.
func (x *exchange) notStarted(err error) {
	x.open = nil
	x.notKept(err)
	if x.event.Outcome == OutcomeFailed {
		x.event.Outcome = OutcomeUnkept
	}
}
