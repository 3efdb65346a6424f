package meter_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/chaos/internal/cluster/meter"
)

// The made-up load, from the second 0 on.
const (
	rate  = 10 // orders and blue messages a second
	pause = time.Second / rate
	look  = 200 * time.Millisecond // between two samples
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

// record plays a load from second 0 to 40: orders and blue messages that are written from
// second 10 to 20 are handled only then, at once.
func record(ordersStall, blueStalls bool) *meter.Meter {
	m := &meter.Meter{}
	for now := start; now.Before(at(40)); now = now.Add(pause) {
		m.NoteWritten(1, 1)
		stalled := !now.Before(at(10)) && now.Before(at(20))
		switch {
		case ordersStall && stalled:
		case ordersStall && now.Equal(at(20)):
			for range 10*rate + 1 {
				m.Complete(now)
			}
		default:
			m.Complete(now)
		}
		if handled := now; blueStalls && stalled {
			handled = at(20)
			m.HandleBlue(now, handled)
		} else {
			m.HandleBlue(now, now)
		}
		if now.Sub(start)%look == 0 {
			m.AddSample(meter.Sample{At: now, Held: held(ordersStall && stalled), Dead: held(ordersStall && stalled) / 10})
		}
	}
	return m
}

func held(stalled bool) int {
	if stalled {
		return 30
	}
	return 0
}

// window is the window of a fault from second 10 to 15, as m recorded it.
func window(m *meter.Meter) meter.Window {
	normal := m.NormalRates(at(6), rate, 2*rate)
	return meter.Window{Struck: at(10), Ended: at(15), Recovered: m.Recovered(at(15), normal), Over: at(30)}
}

func TestFigures(t *testing.T) {
	t.Parallel()
	calm := meter.Figures{Duration: 5 * time.Second, Stall: pause, BluePercent: 100, Done: 20 * rate}
	stalled := calm
	stalled.Stall, stalled.Recovery, stalled.Held = 10*time.Second+pause, 5*time.Second+look, 30
	late := calm
	late.BluePercent, late.BlueDelay = 0, 10*time.Second
	for _, tt := range []struct {
		name          string
		orders, blue  bool
		want          meter.Figures
		wantRecovered time.Time
	}{
		{"nothing stalls", false, false, calm, at(15)},
		{"orders stall", true, false, stalled, at(20).Add(look)},
		{"blue stalls", false, true, late, at(15)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := record(tt.orders, tt.blue)
			w := window(m)
			if !w.Recovered.Equal(tt.wantRecovered) {
				t.Errorf("recovered at %v, want %v", w.Recovered.Sub(start), tt.wantRecovered.Sub(start))
			}
			if diff := cmp.Diff(tt.want, m.WindowFigures(w)); diff != "" {
				t.Errorf("figures (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRecovered checks samples that miss one condition each until second 2, and a relapse at second 3.
func TestRecovered(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		lack func(*meter.Sample)
	}{
		{"messages are stored", func(s *meter.Sample) { s.Stored = 1 }},
		{"messages are held back", func(s *meter.Sample) { s.Held = 1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := &meter.Meter{}
			for now := start; now.Before(at(10)); now = now.Add(look) {
				s := meter.Sample{At: now}
				if now.Before(at(2)) || now.Equal(at(2).Add(2*look)) {
					tt.lack(&s)
				}
				m.AddSample(s)
			}
			if got, want := m.Recovered(start, meter.Normal{}), at(2).Add(3*look); !got.Equal(want) {
				t.Errorf("recovered at %v, want %v", got.Sub(start), want.Sub(start))
			}
		})
	}
}

// TestOpen counts orders that are written and not completed.
func TestOpen(t *testing.T) {
	t.Parallel()
	m := &meter.Meter{}
	m.NoteWritten(5, 4)
	m.Complete(at(1))
	m.HandleRed()
	m.HandleBlue(at(1), at(1))
	if got := m.PendingOrders(); got != 6 {
		t.Errorf("%d sagas are pending, want 6", got)
	}
	for range 5 {
		m.AddSample(meter.Sample{At: at(2)})
	}
	if got := m.Recovered(start, meter.Normal{Open: 3}); !got.IsZero() {
		t.Errorf("recovered at %v with 4 orders open", got.Sub(start))
	}
	if got := m.Recovered(start, meter.Normal{Open: 4}); !got.Equal(at(2)) {
		t.Errorf("not recovered with 4 orders open, which is normal")
	}
}

// TestNotRecovered measures a window that ends before the stall does.
func TestNotRecovered(t *testing.T) {
	t.Parallel()
	m := record(true, false)
	w := meter.Window{Struck: at(10), Ended: at(11), Recovered: m.Recovered(at(31), meter.Normal{Rate: 2 * rate}), Over: at(15)}
	got := m.WindowFigures(w)
	if !got.Stuck || got.Recovery != 4*time.Second || got.Stall != 5*time.Second+pause {
		t.Errorf("stuck %t, recovery %v, stall %v; want true, 4s, %v", got.Stuck, got.Recovery, got.Stall, 5*time.Second+pause)
	}
	if got.Dead != 3 {
		t.Errorf("%d dead letters, want 3", got.Dead)
	}
}

// TestRedelivered checks that only redeliveries within a window count.
func TestRedelivered(t *testing.T) {
	t.Parallel()
	m := record(false, false)
	for _, second := range []float64{5, 11, 12, 12, 31} {
		m.Redeliver(at(second))
	}
	if got := m.WindowFigures(window(m)).Redelivered; got != 3 {
		t.Errorf("%d redelivered, want 3", got)
	}
	if got := m.Redelivered(); got != 5 {
		t.Errorf("%d redelivered in all, want 5", got)
	}
}
