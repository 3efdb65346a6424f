package lineartest

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// A response is marked if ticks were late while its request was served, also if
// none has come since.
func TestWatch(t *testing.T) {
	t.Parallel()
	const limit = 10 * watchTick
	for _, tt := range []struct {
		name         string
		before, wait time.Duration // without ticks before and during the request
		look         bool          // a tick follows the second
		marked       bool
	}{
		{"steady", 0, limit, true, false},
		{"hung before", 2 * limit, 0, false, false},
		{"hung, and a tick since", 0, 2 * limit, true, true},
		{"hung, and none since", 0, 2 * limit, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &watch{limit: limit, start: time.Now()}
				time.Sleep(tt.before)
				w.checkTick()
				time.Sleep(watchTick)
				rec := httptest.NewRecorder()
				m := &marker{ResponseWriter: rec, watch: w, since: w.sinceStart()}
				w.checkTick()
				time.Sleep(tt.wait)
				if tt.look {
					w.checkTick()
				}
				_, _ = m.Write([]byte("x"))
				if got := rec.Header().Get(stalledHeader) != ""; got != tt.marked || rec.Code != http.StatusOK {
					t.Errorf("status %d, marked: %t; want it marked: %t", rec.Code, got, tt.marked)
				}
			})
		})
	}
}
