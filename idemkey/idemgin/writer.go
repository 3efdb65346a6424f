package idemgin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
)

// unwritten is the size of a response without status line.
const unwritten = -1

// A writer is the middleware's buffer as handlers in gin expect it. Like the
// buffer it has no Unwrap: http.NewResponseController would find the
// connection, and send a 200 for a transaction that then rolls back. Like the
// buffer it may be used by several goroutines.
type writer struct {
	http.ResponseWriter // the buffer
	r                   *http.Request

	mu      sync.Mutex
	status  int
	size    int
	refused int // the last other status that came after the first byte; 0: none
}

var _ gin.ResponseWriter = (*writer)(nil)

// WriteHeader sets a status that the first byte or WriteHeaderNow makes final.
// gin calls it with 0 or less to leave the status as it is.
func (w *writer) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case status <= 0:
	case w.size == unwritten:
		w.status = status
	case status != w.status:
		w.refused = status
	}
}

// failedLate reports whether a streamed response, whose beginning may have been sent, got the status of an
// error afterwards.
func (w *writer) failedLate() bool {
	_, streams := w.ResponseWriter.(interface{ FlushError() error })
	w.mu.Lock()
	defer w.mu.Unlock()
	return streams && w.refused >= http.StatusBadRequest
}

func (w *writer) WriteHeaderNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.size == unwritten {
		w.size = 0
		w.ResponseWriter.WriteHeader(w.status)
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	return w.countBytes(w.ResponseWriter.Write(p))
}

func (w *writer) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	return w.countBytes(io.WriteString(w.ResponseWriter, s))
}

// countBytes adds the bytes of a Write, and returns the results of the Write.
func (w *writer) countBytes(n int, err error) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.size += n
	return n, err
}

func (w *writer) Status() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

func (w *writer) Size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size
}

func (w *writer) Written() bool { return w.Size() != unwritten }

// Flush does nothing if the response is not streamed: it cannot return an
// error. A caller that uses http.ResponseController gets one.
func (w *writer) Flush() { _ = w.FlushError() }

// FlushError works under idemkey.Options.Response.AllowStreaming.
func (w *writer) FlushError() error {
	f, ok := w.ResponseWriter.(interface{ FlushError() error })
	if !ok {
		return http.ErrNotSupported
	}
	w.WriteHeaderNow()
	return f.FlushError()
}

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

// Pusher returns nil, which is how gin says that there is none.
func (w *writer) Pusher() http.Pusher { return nil }

// CloseNotify reports the end of the handler's context. A client that disconnects
// ends it only under idemkey.Options.CancelOnDisconnect.
func (w *writer) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.r.Context(), func() { gone <- true })
	return gone
}

func (w *writer) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(w.ResponseWriter).SetReadDeadline(t)
}

func (w *writer) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(w.ResponseWriter).SetWriteDeadline(t)
}

func (w *writer) EnableFullDuplex() error {
	return http.NewResponseController(w.ResponseWriter).EnableFullDuplex()
}
