package outbox

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A relay that hears of commits reads the log after a wake-up and after PollMax. One that does not hear of them polls.
func TestWhenTheLogIsReadAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const pollMax = time.Hour
	for name, tt := range map[string]struct {
		deaf        bool
		reads       []int // messages of each read that was not announced
		least, most time.Duration
	}{
		"listening":                         {reads: []int{0}, least: pollMax, most: pollMax},
		"one unannounced message":           {reads: []int{1, 0}, least: pollMax, most: pollMax},
		"two unannounced in a row":          {reads: []int{1, 1}, least: 0, most: silentWriterPoll},
		"and then none for many reads":      {reads: []int{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}, least: silentWriterPoll, most: silentWriterPoll},
		"deaf, after messages":              {deaf: true, reads: []int{1}, least: 0, most: 5 * time.Millisecond},
		"deaf, after many reads of nothing": {deaf: true, reads: make([]int, 10), least: silentWriterPoll, most: silentWriterPoll},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLeader(f.relay(t, RelayOptions{PollMax: pollMax}), tenure{}, nil)
			l.listens.Store(!tt.deaf)
			l.expectsMessages = false
			began := time.Now()
			for _, n := range tt.reads {
				began = time.Now()
				l.schedulePoll(n, false)
			}
			if pause := l.pollAt.Sub(began); pause < tt.least || pause > tt.most+time.Since(began) {
				t.Errorf("the log is read again after %v, want between %v and %v", pause, tt.least, tt.most)
			}
		})
	}
}

// A confirm alone is no reason to read the log: its page is settled, and a later read carries the checkpoint.
func TestAConfirmCausesNoRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.leader(t, RelayOptions{Lanes: 1, PollMax: time.Hour})
	l.listens.Store(true)
	f.write(t, msg("k", "1"))
	f.publishPage(t, l, nil)
	f.write(t, msg("k", "2")) // without Wake and without a notification
	for range 3 {
		if _, err := l.doRound(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.window.pages) != 0 || l.window.settled != 1 {
		t.Errorf("%d pages are in flight, and %d messages settled without a checkpoint; want 0 and 1", len(l.window.pages), l.window.settled)
	}
	l.expectsMessages, l.settler.unwrittenSince = true, time.Now().Add(-checkpointPause)
	if n, err := l.readLog(t.Context()); n != 1 || err != nil || l.window.settled != 0 {
		t.Errorf("read %d messages, %v, with %d left without a checkpoint; want 1 and 0", n, err, l.window.settled)
	}
}

// Differences around the size up to which one statement lists and reads them are read whole, in order and once.
func TestADifferenceIsReadWhole(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 3, 4, 5, 9} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			l := f.leader(t, RelayOptions{})
			l.limits.small = 4
			var want []string
			var got []string
			for round := range 2 {
				for i := range n {
					want = append(want, fmt.Sprintf("%d-%d", round, i))
					f.write(t, msg("k", want[len(want)-1]))
				}
				for range n + 1 {
					rows, _, err := l.log.readPage(t.Context(), l.log.newReadBatch(), 4, 3*len("0-0"))
					if err != nil {
						t.Fatal(err)
					}
					for i := range rows {
						got = append(got, string(rows[i].Payload))
					}
				}
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("read %q, want %q", got, want)
			}
			if !l.log.isCaughtUp() {
				t.Error("the difference is not read to its end")
			}
		})
	}
}
