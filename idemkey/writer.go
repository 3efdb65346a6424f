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

// errResponseTooLarge is what a handler's Write gets beyond the hard limit.
var errResponseTooLarge = errors.New("idemkey: response is over the hard limit")

// A buffer is the ResponseWriter that a handler gets. Nothing it is given
// reaches the client before send, which is called once the outcome is durable.
//
// It has no Unwrap, Flush or Hijack: http.NewResponseController would find the
// connection behind it and send a 200 for a transaction that then rolls back.
// Deadlines and full duplex, which send nothing, are passed on one by one.
//
// The handler may use it from several goroutines. Once it is closed they change
// nothing, and its fields are the middleware's alone.
type buffer struct {
	control sync.Mutex // of the connection's settings
	mu      sync.Mutex // of what is written
	closed  atomic.Bool

	raw    http.ResponseWriter
	limit  int
	base   http.Header     // what outer middleware had set, and the key
	own    map[string]bool // canonical names that are the middleware's: see reserve
	header http.Header     // the handler's view, which begins as base
	sent   http.Header     // header as it was at WriteHeader; nil before
	status int
	body   []byte
	over   bool // the body went over the limit
}

func newBuffer(raw http.ResponseWriter, limit int) *buffer {
	b := &buffer{raw: raw, limit: limit, base: raw.Header().Clone(), header: raw.Header().Clone()}
	if b.header == nil {
		b.header = make(http.Header)
	}
	return b
}

// refuse ends the handler's part, except for a Write that is under way.
func (b *buffer) refuse() {
	b.control.Lock()
	defer b.control.Unlock()
	b.closed.Store(true)
}

// close ends the handler's part. When it returns, every Write has ended, and
// all later ones are refused.
func (b *buffer) close() {
	b.refuse()
	b.mu.Lock() // waits for a Write that is under way
	defer b.mu.Unlock()
}

// Header returns the handler's header, and after close one that nobody reads.
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
		b.writeHeader(status)
	}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() {
		return 0, ErrSettled
	}
	return b.write(p)
}

// writeHeader passes informational statuses on at once, as net/http does; they
// are no outcome.
func (b *buffer) writeHeader(status int) {
	if status < 100 || status > 999 {
		// net/http panics too, but would do so after the commit.
		panic(fmt.Sprintf("idemkey: invalid WriteHeader code %d", status))
	}
	switch {
	case b.sent != nil:
	case status < 200 && status != http.StatusSwitchingProtocols:
		b.replaceHeader(b.reserve(b.header.Clone()))
		b.raw.WriteHeader(status)
		b.replaceHeader(b.base)
	default:
		b.status, b.sent = status, b.reserve(b.header.Clone())
	}
}

// reserve returns h without what the handler has set in the middleware's own headers, in any
// spelling: a client must find the key that it sent, and on a replay alone that it is one.
func (b *buffer) reserve(h http.Header) http.Header {
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

func (b *buffer) write(p []byte) (int, error) {
	if b.sent == nil {
		b.writeHeader(http.StatusOK)
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
	return b.configure(func(c *http.ResponseController) error { return c.SetReadDeadline(t) })
}

func (b *buffer) SetWriteDeadline(t time.Time) error {
	return b.configure(func(c *http.ResponseController) error { return c.SetWriteDeadline(t) })
}

func (b *buffer) EnableFullDuplex() error {
	return b.configure((*http.ResponseController).EnableFullDuplex)
}

// configure changes a setting of the connection. It does not wait for a Write, which a
// deadline may have to end.
func (b *buffer) configure(set func(*http.ResponseController) error) error {
	b.control.Lock()
	defer b.control.Unlock()
	if b.closed.Load() {
		return ErrSettled
	}
	return set(http.NewResponseController(b.raw))
}

// finish closes b and settles status and content type, as net/http would on the
// first byte: from here on the response does not change, and a replay is the same.
func (b *buffer) finish() {
	b.close()
	if b.sent == nil {
		b.writeHeader(http.StatusOK)
	}
	_, typed := b.sent["Content-Type"]
	if !typed && len(b.body) > 0 && b.sent.Get("Content-Encoding") == "" {
		b.sent.Set("Content-Type", http.DetectContentType(b.body))
	}
	b.tidy()
}

// tidy makes the header one that a replay can repeat. It removes what would
// announce a trailer, which cannot be replayed, and puts a space in the place of
// control characters: net/http does so with line breaks alone.
func (b *buffer) tidy() {
	for name, values := range b.sent {
		for i, value := range values {
			if !validValue(value) {
				values[i] = strings.Map(printable, value)
			}
		}
		if name == "Trailer" || strings.HasPrefix(name, http.TrailerPrefix) {
			delete(b.sent, name)
		}
	}
}

// response returns what is kept of a finished buffer: the listed headers that
// the handler set itself. Those of outer middleware are made anew by a replay.
func (b *buffer) response(kept map[string]bool, maxBody int) Response {
	r := Response{Status: b.status, Header: make(http.Header), Body: b.body}
	for name, values := range b.sent {
		before, had := b.base[name]
		if kept[name] && !(had && slices.Equal(before, values)) {
			r.Header[name] = values
		}
	}
	if b.over || len(b.body) > maxBody {
		r.Body, r.Dropped = nil, true
	}
	return r
}

// send writes the finished response to the client.
func (b *buffer) send() {
	b.replaceHeader(b.sent)
	sendBody(b.raw, b.status, b.body)
}

func printable(r rune) rune {
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

// sendBody ignores a failed write: the client has gone, and a retry gets the
// same bytes.
func sendBody(w http.ResponseWriter, status int, body []byte) {
	if bodyAllowed(status) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	} else {
		w.Header().Del("Content-Length")
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body)
	}
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
