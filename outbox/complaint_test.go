package outbox

import (
	"testing"
	"time"
)

// All lanes and topics meet the same broker: the log says so once a second.
func TestTheLogComplainsOnceASecond(t *testing.T) {
	t.Parallel()
	var of topics
	at := time.Unix(1000, 0)
	for _, tt := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {time.Millisecond, false}, {complaintPause, true}, {complaintPause + time.Millisecond, false}} {
		if got := of.mayComplain(at.Add(tt.after)); got != tt.want {
			t.Errorf("after %v: %t, want %t", tt.after, got, tt.want)
		}
	}
}
