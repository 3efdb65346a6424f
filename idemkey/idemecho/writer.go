package idemecho

import (
	"errors"
	"net/http"
	"time"
)

// errFlush is not an http.ErrNotSupported, for which echo.Response.Flush
// panics. A library that flushes where it can would then fail each request.
var errFlush = errors.New("idemecho: the response is sent when its outcome is durable")

// A writer is the middleware's buffer, with a Flush that does nothing unless
// the response is streamed. Like the buffer it has no Unwrap:
// http.NewResponseController would find the connection, and send a 200 for a
// transaction that then rolls back.
type writer struct{ http.ResponseWriter }

func (w writer) FlushError() error {
	f, ok := w.ResponseWriter.(interface{ FlushError() error })
	if !ok {
		return errFlush
	}
	if err := f.FlushError(); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return errFlush
}

func (w writer) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(w.ResponseWriter).SetReadDeadline(t)
}

func (w writer) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(w.ResponseWriter).SetWriteDeadline(t)
}

func (w writer) EnableFullDuplex() error {
	return http.NewResponseController(w.ResponseWriter).EnableFullDuplex()
}
