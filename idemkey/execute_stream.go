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
)

// errStreamCut reports a response that ended before the handler meant it to.
var errStreamCut = errors.New("idemkey: the streamed response was cut off")

// A stream is a buffer that sends a successful response while the handler writes it. Before its first byte
// start has made a tombstone of the record: a client that saw a success begin never causes a second run, even
// if the handler, the process or the lease fails afterwards.
//
// A response that is not a 2xx with a body, or that is not to be kept, stays in the buffer.
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
	if err := s.beginSending(); err != nil {
		return 0, err
	}
	if !s.live.Load() {
		return s.appendBody(p)
	}
	return s.raw.Write(p)
}

// Flush is FlushError without its error, as http.Flusher has it.
func (s *stream) Flush() { _ = s.FlushError() }

// FlushError sends what was written so far, the header at least.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.beginSending(); err != nil {
		return err
	}
	if !s.live.Load() {
		return http.ErrNotSupported
	}
	return http.NewResponseController(s.raw).Flush()
}

// beginSending decides once, by the status, whether the response is sent as it is written. mu is held.
func (s *stream) beginSending() error {
	if s.closed.Load() {
		return ErrSettled
	}
	if s.sent == nil {
		s.setStatus(http.StatusOK)
	}
	if s.decided || s.status >= 300 || !bodyAllowed(s.status) {
		return s.err
	}
	s.decided = true
	s.tidyHeader()
	// A client that knows the length would take a response for complete before its handler has returned. With
	// an encoding that has no end it could not detect a response that was cut off.
	s.sent.Del("Content-Length")
	s.sent.Del("Transfer-Encoding")
	live, err := s.start()
	if s.err = err; live {
		s.replaceHeader(s.sent)
		s.live.Store(true) // a writer that panics may have sent it
		s.raw.WriteHeader(s.status)
	}
	if s.failed.Load() { // meanwhile: that cut found nothing under way
		s.cutConnection()
		return cmp.Or(s.err, ErrSettled)
	}
	return s.err
}

// cutConnection stops what is being sent, by a write deadline that has passed. That works even where a recoverer
// swallows http.ErrAbortHandler: without the deadline the response would then end as if it were complete. A
// writer that has no deadlines leaves it to the panic.
func (s *stream) cutConnection() {
	s.failed.Store(true)
	s.refuseWrites() // before the deadline, or the handler could set another one
	if s.live.Load() {
		_ = http.NewResponseController(s.raw).SetWriteDeadline(time.Unix(1, 0))
	}
}

// handlerWriter returns the writer of the handler. For a stream, stopRenewing ends the renewals of the lease,
// and lost cancels the handler if no tombstone can be kept.
func (x *executor) handlerWriter(h *handled, stopRenewing func(), lost context.CancelCauseFunc) http.ResponseWriter {
	b := h.buffer
	if !x.m.opts.Response.AllowStreaming {
		return b
	}
	h.stream = &stream{buffer: b}
	h.stream.start = func() (bool, error) {
		verdict := h.run.verdictOnStatus(b.status, x.m.opts.Policy)
		if verdict != Keep && verdict != CommitAnyway || !x.r.ProtoAtLeast(1, 1) {
			return false, nil
		}
		stopRenewing() // a completed record has no lease to renew
		err := x.records.keepTombstone(b)
		if err != nil {
			lost(err)
		}
		return err == nil, err
	}
	return h.stream
}

// responseBegan reports that the client has been sent the beginning of a success.
func (h *handled) responseBegan() bool { return h.stream != nil && h.stream.live.Load() }

// streamErr returns why a response that was to be streamed was not sent.
func (h *handled) streamErr() error {
	if h.stream == nil {
		return nil
	}
	return h.stream.err
}

// cutStream stops what is being sent of a response that has failed. A goroutine of the handler may wait for a
// client that reads nothing, and would otherwise hold up the end of the request.
func (h *handled) cutStream() {
	if h.stream != nil {
		h.stream.cutConnection()
	}
}

// cutAtEnd cuts a stream when ctx ends: the handler may be in a Write whose client reads nothing. stop
// waits for a cut that has begun.
func (h *handled) cutAtEnd(ctx context.Context) (stop func()) {
	if h.stream == nil {
		return func() {}
	}
	done := make(chan struct{})
	stopped := context.AfterFunc(ctx, func() {
		defer close(done)
		h.cutStream()
	})
	return func() {
		if !stopped() {
			<-done
		}
	}
}

// thrownError describes the value that a handler has panicked with. It must be called while the stack of the
// panic is there. Without a panic the handler has ended its goroutine.
func thrownError(thrown any) error {
	switch thrown {
	case nil, http.ErrAbortHandler:
		return errNotReturned
	}
	return fmt.Errorf("%w: %v\n%s", errNotReturned, thrown, debug.Stack())
}
