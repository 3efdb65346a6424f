//go:build failpoints

package failpoint

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	armed := parse("outbox/after-read=kill;consumer/before-ack=error:3;consumer/before-ack=delay(20ms):5;effect/after-call=delay;test/of-its-own=stop;")
	want := map[string]string{
		"outbox/after-read":   "kill 300ms 1",
		"consumer/before-ack": "error 300ms 3, delay 20ms 5",
		"effect/after-call":   "delay 300ms 1",
		"test/of-its-own":     "stop 300ms 1",
	}
	for name, w := range want {
		var got []string
		for _, f := range armed[name] {
			got = append(got, f.action+" "+f.delay.String()+" "+strings.Repeat("I", f.left))
		}
		w = strings.NewReplacer(" 1", " I", " 3,", " III,", " 5", " IIIII").Replace(w)
		if g := strings.Join(got, ", "); g != w {
			t.Errorf("%s: %s, want %s", name, g, w)
		}
	}
	if len(armed) != len(want) {
		t.Errorf("%d points are armed, want %d", len(armed), len(want))
	}
}

// A misspelt entry must not pass for a fault that did no harm.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for entry, reason := range map[string]string{
		"outbox/after-red=kill":               `there is no point "outbox/after-red"`,
		"outbox/after-read":                   `there is no action ""`,
		"outbox/after-read=die":               `there is no action "die"`,
		"outbox/after-read=kill:0":            `"0" is no number of hits`,
		"outbox/after-read=kill:x":            `"x" is no number of hits`,
		"outbox/after-read=delay(soon)":       "want delay(d)",
		"outbox/after-read=delay(1s":          "want delay(d)",
		"outbox/after-read=delay(2h)":         "want delay(d)",
		"outbox/after-read=kill(1s)":          "want delay(d)",
		"outbox/after-read=error:1=kill:2":    "is no number of hits",
		"outbox/after-read=kill,after-x=kill": `there is no action "kill,after-x=kill"`,
	} {
		func() {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, reason) {
					t.Errorf("%s: panics with %q, want %q", entry, got, reason)
				}
			}()
			parse(entry)
		}()
	}
}

func TestDefaultDelayIsAllowed(t *testing.T) {
	t.Parallel()
	if DefaultDelay > maxDelay || DefaultDelay < time.Millisecond {
		t.Errorf("the default delay is %s", DefaultDelay)
	}
}
