package rabbitmq

import (
	"testing"
	"time"
)

// The wait for a confirm follows how long confirms take, between its bounds, and doubles
// when it was in vain at each broker. Waits that end together count once.
func TestConfirmPatience(t *testing.T) {
	t.Parallel()
	const most = 30 * time.Second
	confirms := func(n int, took time.Duration) func(*confirmPatience) {
		return func(p *confirmPatience) {
			for range n {
				p.noteConfirmed(took)
			}
		}
	}
	vain := func(n int, together int) func(*confirmPatience) {
		return func(p *confirmPatience) {
			now := time.Now()
			for range n {
				waited := p.currentWait()
				now = now.Add(waited)
				for range together {
					p.noteExpired(waited, now)
				}
			}
		}
	}
	slow := func(n int, together int) func(*confirmPatience) {
		return func(p *confirmPatience) {
			now := time.Now()
			for range n {
				waited := p.currentWait()
				now = now.Add(waited)
				for i := range together {
					p.noteSlow(waited, now.Add(time.Duration(i)*waited/10))
				}
			}
		}
	}
	for _, tt := range []struct {
		name        string
		brokers     int
		do          []func(*confirmPatience)
		least, most time.Duration
	}{
		{"at first", 1, nil, firstConfirmTimeout, firstConfirmTimeout},
		{"quick confirms", 1, []func(*confirmPatience){confirms(50, 5*time.Millisecond)}, minConfirmTimeout, minConfirmTimeout},
		{"slow confirms", 1, []func(*confirmPatience){confirms(50, 3*time.Second)}, 3 * time.Second, 4 * time.Second},
		{"confirms that grow slow", 1, []func(*confirmPatience){confirms(50, 5*time.Millisecond), confirms(3, 2*time.Second)}, 3 * time.Second, 12 * time.Second},
		{"confirms that take for ever", 1, []func(*confirmPatience){confirms(50, time.Hour)}, most, most},
		{"in vain", 1, []func(*confirmPatience){confirms(50, 0), vain(2, 1)}, 4 * minConfirmTimeout, 4 * minConfirmTimeout},
		{"in vain together", 1, []func(*confirmPatience){confirms(50, 0), vain(2, 4)}, 4 * minConfirmTimeout, 4 * minConfirmTimeout},
		{"in vain at each of three", 3, []func(*confirmPatience){confirms(50, 0), vain(4, 4)}, 2 * minConfirmTimeout, 2 * minConfirmTimeout},
		{"slow among others", 1, []func(*confirmPatience){confirms(50, 0), slow(1, 1)}, 2 * minConfirmTimeout, 2 * minConfirmTimeout},
		{"slow among others together", 1, []func(*confirmPatience){confirms(50, 0), slow(1, 4)}, 2 * minConfirmTimeout, 2 * minConfirmTimeout},
		{"slow among others again", 1, []func(*confirmPatience){confirms(50, 0), slow(2, 4)}, 4 * minConfirmTimeout, 4 * minConfirmTimeout},
		{"slow among others for long", 1, []func(*confirmPatience){slow(20, 1)}, most, most},
		{"in vain for long", 1, []func(*confirmPatience){vain(20, 1)}, most, most},
		{"in vain, and then confirmed", 1, []func(*confirmPatience){vain(20, 1), confirms(1, time.Millisecond)}, minConfirmTimeout, minConfirmTimeout},
	} {
		p := newConfirmPatience(most, tt.brokers)
		for _, do := range tt.do {
			do(p)
		}
		if got := p.currentWait(); got < tt.least || got > tt.most {
			t.Errorf("%s: the timeout is %v, want %v to %v", tt.name, got, tt.least, tt.most)
		}
	}
	if got := newConfirmPatience(50*time.Millisecond, 1).currentWait(); got != 50*time.Millisecond {
		t.Errorf("a ConfirmTimeout of 50 ms begins with %v", got)
	}
}
