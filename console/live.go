package console

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	livePrefix = "live/"

	// maxStreams is how many browser tabs get live parts at once. Others see the page as it was loaded.
	maxStreams = 64

	// streamAge ends a stream, so that a right that was taken away ends too. The browser connects again.
	streamAge = 10 * time.Minute

	livePause  = 2 * time.Second
	writeLimit = 10 * time.Second
)

// serveLive sends the blocks of a page as server-sent events while the browser has the page open: all of them at first,
// later those that have changed. Nothing is read after the browser has gone.
func (c *Console) serveLive(w http.ResponseWriter, r *request) error {
	select {
	case c.live <- struct{}{}:
		defer func() { <-c.live }()
	default:
		return &pageError{Status: http.StatusServiceUnavailable, What: fmt.Sprintf("%d streams are open.", maxStreams), Advice: "Close pages of the console."}
	}
	ctx, cancel := context.WithTimeout(r.http.Context(), streamAge)
	defer cancel()
	s := &stream{console: c, w: w, r: r, sent: map[string]string{}}
	r.root = relativeRoot("/" + r.page.path) // of the page that shows the blocks
	if _, err := s.read(ctx); c.isRequestsFault(ctx, err) {
		return err // no event: a browser that gets an error does not connect again
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	for ctx.Err() == nil {
		last, err := s.sendChanges(ctx)
		if err != nil || last {
			return nil // the browser has gone, or needs no more
		}
		select {
		case <-ctx.Done():
		case <-time.After(livePause):
		}
	}
	return nil
}

// isRequestsFault reports whether err will be the same whenever the request is repeated.
func (c *Console) isRequestsFault(ctx context.Context, err error) bool {
	return err != nil && c.explainError(ctx, err).Status < http.StatusInternalServerError
}

// A stream is an open page.
type stream struct {
	console *Console
	w       http.ResponseWriter
	r       *request
	sent    map[string]string // the last event of each block
}

// read reads what the blocks get, within the limit of a page.
func (s *stream) read(ctx context.Context) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, pageReads*s.console.opts.ReadTimeout)
	defer cancel()
	var data any
	err := s.console.whileReading(ctx, func() (err error) {
		data, err = s.r.page.live(ctx, s.r)
		return err
	})
	return data, err
}

// A finished view does not change any more: its stream ends.
type finished interface{ isFinished() bool }

// sendChanges sends the blocks that differ from what was sent last. If a read fails it sends none: the page keeps what it
// shows, and the next read may succeed. It sends a comment in any case, which fails if the browser has gone.
func (s *stream) sendChanges(ctx context.Context) (last bool, err error) {
	var events bytes.Buffer
	events.WriteString(": \n\n")
	data, err := s.read(ctx)
	if err == nil {
		v := s.console.newView(s.r, s.r.page, data)
		for _, block := range s.r.page.blocks {
			if err := s.writeChanged(&events, block, v); err != nil {
				return false, err
			}
		}
		if f, ok := data.(finished); ok && f.isFinished() {
			last = true
			events.WriteString("event: end\ndata: \n\n")
		}
	} else if ctx.Err() == nil {
		s.console.explainError(ctx, err)
	}
	extendDeadline(s.w, writeLimit)
	if _, err := s.w.Write(events.Bytes()); err != nil {
		return false, err
	}
	return last, http.NewResponseController(s.w).Flush()
}

// lineEnds makes each end of a line in an event a newline. A browser takes a carriage return for one too, so that a stored
// text could begin an event of its own.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

func (s *stream) writeChanged(events *bytes.Buffer, block string, v *view) error {
	var text bytes.Buffer
	if err := s.r.page.parsed.ExecuteTemplate(&text, block, v); err != nil {
		return err
	}
	if s.sent[block] == text.String() {
		return nil
	}
	s.sent[block] = text.String()
	fmt.Fprintf(events, "event: %s\n", block)
	for line := range strings.Lines(lineEnds.Replace(text.String())) {
		fmt.Fprintf(events, "data: %s\n", strings.TrimSuffix(line, "\n"))
	}
	events.WriteString("\n")
	return nil
}
