package lineartest

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	stalledHeader = "Lineartest-Stalled"
	watchTick     = 5 * time.Millisecond
)

// ServeWatched is [Serve] for a store whose owners are kept by a lease. It marks
// the responses of requests during which this process hung for longer than
// limit, because it was stopped or the machine was busy.
func ServeWatched(h http.Handler, limit time.Duration) error {
	w := &watch{limit: limit, start: time.Now()}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { w.watchTicks(ctx) })
	defer wg.Wait()
	defer cancel()
	return Serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&marker{ResponseWriter: rw, watch: w, since: w.sinceStart()}, r)
	}))
}

// A watch notices when the process hangs: its ticks are late. Times are since start.
type watch struct {
	limit time.Duration
	start time.Time
	tick  atomic.Int64 // the last
	stall atomic.Int64 // when the last stall was noticed
}

func (w *watch) sinceStart() int64 { return int64(time.Since(w.start)) }

func (w *watch) watchTicks(ctx context.Context) {
	ticker := time.NewTicker(watchTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.checkTick()
		}
	}
}

// checkTick stores a stall before it stores the tick: a reader of the tick also sees the stall.
func (w *watch) checkTick() {
	now := w.sinceStart()
	if now-w.tick.Load() > int64(w.limit) {
		w.stall.Store(now)
	}
	w.tick.Store(now)
}

// stalledSince also knows of a stall that no tick has followed yet.
func (w *watch) stalledSince(since int64) bool {
	last := w.tick.Load() // before stall
	return w.stall.Load() >= since || w.sinceStart()-last > int64(w.limit)
}

// A marker marks its response. By then the store has decided.
type marker struct {
	http.ResponseWriter
	watch *watch
	since int64
	wrote bool
}

// WriteHeader adds the mark.
func (m *marker) WriteHeader(status int) {
	if !m.wrote && m.watch.stalledSince(m.since) {
		m.Header().Set(stalledHeader, "true")
	}
	m.wrote = true
	m.ResponseWriter.WriteHeader(status)
}

// Write marks a response without WriteHeader too.
func (m *marker) Write(p []byte) (int, error) {
	if !m.wrote {
		m.WriteHeader(http.StatusOK)
	}
	return m.ResponseWriter.Write(p)
}
