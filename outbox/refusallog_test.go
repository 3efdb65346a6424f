package outbox

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

// A topic whose messages are refused all the time has a line a second, which says how many
// refusals it stands for.
func TestRefusalsAreLoggedOnceASecondAndTopic(t *testing.T) {
	t.Parallel()
	var r refusalLog
	began := time.Now()
	got := ""
	for _, at := range []struct {
		topic string
		after time.Duration
	}{
		{"a", 0},
		{"a", time.Millisecond},
		{"b", 2 * time.Millisecond},
		{"a", 999 * time.Millisecond},
		{"a", time.Second},
		{"a", 2 * time.Second},
	} {
		unsaid, log := r.admitLine(at.topic, began.Add(at.after))
		got += fmt.Sprintf("%s %t %d, ", at.topic, log, unsaid)
	}
	if want := "a true 0, a false 0, b true 0, a false 0, a true 2, a true 0, "; got != want {
		t.Errorf("%s want %s", got, want)
	}
}

// Topics may be anything, and as many: beyond a number of them they share a line.
func TestRefusalsOfManyTopicsShareALine(t *testing.T) {
	t.Parallel()
	var r refusalLog
	lines := 0
	for range 2 {
		for i := range 3 * refusalTopics {
			if _, log := r.admitLine(strconv.Itoa(i), time.Time{}); log {
				lines++
			}
		}
	}
	if lines != refusalTopics+1 || len(r.topics) != refusalTopics {
		t.Errorf("%d lines of %d topics, %d are remembered; want one for each of those, and one", lines, 3*refusalTopics, len(r.topics))
	}
	if unsaid, log := r.admitLine("new", time.Time{}.Add(refusalPause)); !log || unsaid != 4*refusalTopics-1 {
		t.Errorf("a second later: %d unsaid, logged %t", unsaid, log)
	}
}
