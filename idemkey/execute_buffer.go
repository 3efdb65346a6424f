package idemkey

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ErrSettled reports that a handler has returned, and that its response is settled: a goroutine
// that it left behind can write no more. Nothing of such a Write is sent or kept.
var ErrSettled = errors.New("idemkey: the handler has returned and its response is settled")

// ErrShortResponse reports a handler that wrote fewer bytes than its Content-Length says: the response is not whole. The
// request fails with it, as if the handler had returned it.
var ErrShortResponse = errors.New("idemkey: the handler wrote fewer bytes than its Content-Length says")

// errResponseTooLarge is the error of a handler's Write beyond the hard limit.
var errResponseTooLarge = errors.New("idemkey: response is over the hard limit")

// A buffer is the ResponseWriter that a handler gets. The client gets none of it before sendResponse, which is
// called once the outcome is durable.
//
// It has no Unwrap, Flush or Hijack: http.NewResponseController would find the
// connection behind it and send a 200 for a transaction that then rolls back.
// Deadlines and full duplex, which send nothing, are passed on one by one.
//
// The handler may use it from several goroutines. Once it is closed they change nothing, and only the
// middleware uses its fields.
type buffer struct {
	control sync.Mutex // of the connection's settings
	mu      sync.Mutex // of the response
	closed  atomic.Bool

	raw    http.ResponseWriter
	head   bool // of a request by HEAD, whose response has the length of a body that is not sent
	limit  int
	base   http.Header     // the headers of outer middleware, and the key
	own    map[string]bool // canonical names that are the middleware's: see reserveHeaders
	header http.Header     // the handler's view, which begins as base
	sent   http.Header     // header as it was at WriteHeader; nil before
	status int
	body   []byte
	over   bool // the body went over the limit
}

// newBuffer returns a buffer whose response goes to raw. own are the middleware's headers: see reserveHeaders.
func newBuffer(raw http.ResponseWriter, limit int, own map[string]bool) *buffer {
	b := &buffer{raw: raw, limit: limit, own: own, base: raw.Header().Clone(), header: raw.Header().Clone()}
	if b.header == nil {
		b.header = make(http.Header)
	}
	return b
}

// refuseWrites ends the handler's part, except for a Write that is under way.
func (b *buffer) refuseWrites() {
	b.control.Lock()
	defer b.control.Unlock()
	b.closed.Store(true)
}

// closeWrites ends the handler's part. When it returns, every Write has ended, and
// all later ones are refused.
func (b *buffer) closeWrites() {
	b.refuseWrites()
	b.mu.Lock() // waits for a Write that is under way
	defer b.mu.Unlock()
}

// Header returns the handler's header, and after closeWrites one that is discarded.
func (b *buffer) Header() http.Header {
	if b.closed.Load() {
		return make(http.Header)
	}
	return b.header
}

func (b *buffer) WriteHeader(status int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed.Load() {
		b.setStatus(status)
	}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() {
		return 0, ErrSettled
	}
	return b.appendBody(p)
}

// setStatus passes informational statuses on at once, as net/http does: they are no outcome.
func (b *buffer) setStatus(status int) {
	if status < 100 || status > 999 {
		// net/http panics too, but would do so after the commit.
		panic(fmt.Sprintf("idemkey: invalid WriteHeader code %d", status))
	}
	switch {
	case b.sent != nil:
	case status < 200 && status != http.StatusSwitchingProtocols:
		b.replaceHeader(b.reserveHeaders(b.header.Clone()))
		b.raw.WriteHeader(status)
		b.replaceHeader(b.base)
	default:
		b.status, b.sent = status, b.reserveHeaders(b.header.Clone())
	}
}

// reserveHeaders returns h without the handler's values of the middleware's own headers, in any spelling. A
// client must find the key that it sent, and the mark of a replay only on a replay.
func (b *buffer) reserveHeaders(h http.Header) http.Header {
	for name := range h {
		if b.own[http.CanonicalHeaderKey(name)] {
			delete(h, name)
		}
	}
	for name := range b.own {
		if before, had := b.base[name]; had {
			h[name] = slices.Clone(before)
		}
	}
	return h
}

func (b *buffer) appendBody(p []byte) (int, error) {
	if b.sent == nil {
		b.setStatus(http.StatusOK)
	}
	if len(p) == 0 { // whatever the status, as in net/http: frameworks write empty bodies
		return 0, nil
	}
	if !bodyAllowed(b.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if b.over || len(b.body)+len(p) > b.limit {
		b.over = true
		return 0, errResponseTooLarge
	}
	b.body = append(b.body, p...)
	return len(p), nil
}

func (b *buffer) SetReadDeadline(t time.Time) error {
	return b.configureConn(func(c *http.ResponseController) error { return c.SetReadDeadline(t) })
}

func (b *buffer) SetWriteDeadline(t time.Time) error {
	return b.configureConn(func(c *http.ResponseController) error { return c.SetWriteDeadline(t) })
}

func (b *buffer) EnableFullDuplex() error {
	return b.configureConn((*http.ResponseController).EnableFullDuplex)
}

// configureConn changes a setting of the connection. It does not wait for a Write: a deadline may have to end
// that Write.
func (b *buffer) configureConn(set func(*http.ResponseController) error) error {
	b.control.Lock()
	defer b.control.Unlock()
	if b.closed.Load() {
		return ErrSettled
	}
	return set(http.NewResponseController(b.raw))
}

// finishResponse closes b and settles status and content type, as net/http would on the first byte. The response does
// not change afterwards, so a replay is the same.
func (b *buffer) finishResponse() {
	b.closeWrites()
	if b.sent == nil {
		b.setStatus(http.StatusOK)
	}
	_, typed := b.sent["Content-Type"]
	if !typed && len(b.body) > 0 && b.sent.Get("Content-Encoding") == "" {
		b.sent.Set("Content-Type", http.DetectContentType(b.body))
	}
	b.tidyHeader()
}

// tidyHeader makes the header one that a replay can repeat. It removes announcements of trailers, which cannot
// be replayed, and replaces control characters by spaces: net/http does so with line breaks alone.
func (b *buffer) tidyHeader() {
	for name, values := range b.sent {
		for i, value := range values {
			if !validValue(value) {
				values[i] = strings.Map(replaceControl, value)
			}
		}
		if name == "Trailer" || strings.HasPrefix(name, http.TrailerPrefix) {
			delete(b.sent, name)
		}
	}
}

// keptResponse returns the part of a finished buffer that is kept: of the headers, those that opts names and that the
// handler set itself. Outer middleware sets its own again on a replay.
func (b *buffer) keptResponse(opts *Options, maxBody int) Response {
	r := Response{Status: b.status, Header: make(http.Header), Body: b.body}
	for name, values := range b.sent {
		if before, had := b.base[name]; !had || !slices.Equal(before, values) {
			r.Header[name] = values
		}
	}
	length, ofHead := r.Header[contentLength], b.head // which a HEAD has no body to tell
	opts.dropUnkept(r.Header)
	if ofHead && len(length) > 0 {
		r.Header[contentLength] = length
	}
	if b.over || len(b.body) > maxBody {
		r.Body, r.Dropped = nil, true
	}
	return r
}

// checkLength returns [ErrShortResponse] if the body of a finished buffer is shorter than the handler has declared.
func (b *buffer) checkLength() error {
	declared := b.sent[contentLength]
	if b.head || b.over || !bodyAllowed(b.status) || len(declared) == 0 || slices.Equal(declared, b.base[contentLength]) {
		return nil
	}
	if n, err := strconv.ParseInt(declared[0], 10, 64); err != nil || n <= int64(len(b.body)) {
		return nil
	}
	return ErrShortResponse
}

// sendResponse writes the finished response to the client.
func (b *buffer) sendResponse() {
	b.replaceHeader(b.sent)
	sendBody(b.raw, b.status, b.body, b.head)
}

// replaceControl returns a space for a control character that a header may not have.
func replaceControl(r rune) rune {
	if r < ' ' && r != '\t' || r == 0x7f {
		return ' '
	}
	return r
}

func (b *buffer) replaceHeader(h http.Header) {
	raw := b.raw.Header()
	clear(raw)
	maps.Copy(raw, h)
}

const contentLength = "Content-Length"

// sendBody ignores a failed write: the client has disconnected, and a retry gets the same bytes. The length of a response
// to HEAD is what its header says.
func sendBody(w http.ResponseWriter, status int, body []byte, head bool) {
	h := w.Header()
	switch {
	case !bodyAllowed(status):
		h.Del(contentLength)
	case head && (len(body) == 0 || h.Get(contentLength) != ""):
	default:
		h.Set(contentLength, strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body)
	}
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
