package fault

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// A life has room for one action at each point, and for one kill or stop. Each strike comes first in its turn.
func TestWhatIsMissingIsArmed(t *testing.T) {
	t.Parallel()
	missing := []string{"effect/after-call=error", "effect/after-call=kill", "effect/before-call=stop", "effect/after-claim=delay"}
	for turn, want := range []string{
		"effect/after-call=error;effect/before-call=stop;effect/after-claim=delay",
		"effect/after-call=kill;effect/after-claim=delay",
		"effect/before-call=stop;effect/after-claim=delay;effect/after-call=error",
		"effect/after-claim=delay;effect/after-call=error;effect/before-call=stop",
	} {
		if got := armMissing(missing, turn); got != want {
			t.Errorf("turn %d: %q, want %q", turn, got, want)
		}
	}
}

// In the late phase, processes are armed only with missing strikes that they reach. Those that cannot strike
// any of them are armed by the seed.
func TestALateArmoryArmsWhatIsMissing(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	var struck []string
	for _, name := range Required() {
		if strings.Contains(name, "=") && name != "effect/after-call=kill" {
			struck = append(struck, name)
		}
	}
	if err := os.WriteFile(log, []byte(strings.Join(struck, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	a := NewArmory(1, log)
	seeded := PlanFuses(1)
	if got, want := a.FusesFor("payment-1", 3), seeded("payment-1", 3); got != want {
		t.Errorf("early: %q, want %q", got, want)
	}
	a.BeginLatePhase()
	if got, want := a.FusesFor("payment-1", 3), "effect/after-call=kill"; got != want {
		t.Errorf("late: %q, want %q", got, want)
	}
	if got, want := a.FusesFor("mail-1", 3), seeded("mail-1", 3); got != want {
		t.Errorf("late, where nobody comes: %q, want %q", got, want)
	}
}

// A process is not killed before it has worked. One armed with a missing strike has more time.
func TestAnEncoreLetsProcessesWork(t *testing.T) {
	t.Parallel()
	missing := []string{"effect/after-call=kill"}
	for name, tt := range map[string]struct {
		missing []string
		armed   string
		ready   time.Duration
		want    bool
	}{
		"it does not come there": {nil, "", time.Hour, false},
		"it is not ready":        {missing, "", 0, false},
		"it is not armed":        {missing, "outbox/after-read=kill:2", 2 * time.Second, true},
		"it is armed":            {missing, "outbox/after-read=kill:2;effect/after-call=kill", 2 * time.Second, false},
		"it strikes nothing":     {missing, "effect/after-call=kill", 7 * time.Second, true},
	} {
		if got := outlived(tt.missing, tt.armed, tt.ready); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// A fault is repeated if it had no hits, failed, or struck while no request was under way.
func TestAFaultThatMetNobodyIsRepeated(t *testing.T) {
	t.Parallel()
	a := NewArmory(1, filepath.Join(t.TempDir(), "log"))
	for i := range kinds {
		a.NoteEvent(record.Event{N: i + 1, Fault: kinds[i].name, Hits: 1, Open: 1})
	}
	if unmet := a.unmetKinds(); len(unmet) > 0 {
		t.Errorf("%d are repeated of which all have met somebody", len(unmet))
	}
	b := NewArmory(1, filepath.Join(t.TempDir(), "log"))
	b.NoteEvent(record.Event{N: 1, Fault: Crash, Open: 1})
	b.NoteEvent(record.Event{N: 2, Fault: Suspend, Hits: 1})
	b.NoteEvent(record.Event{N: 3, Fault: LinkCut, Hits: 1, Open: 1, Err: "no"})
	b.NoteEvent(record.Event{N: 4, Fault: Deadlock, Hits: 1, Open: 1})
	if unmet := b.unmetKinds(); len(unmet) != len(kinds)-1 || slices.ContainsFunc(unmet, func(k *kind) bool { return k.name == Deadlock }) {
		t.Errorf("%d of %d are repeated, want all but one", len(unmet), len(kinds))
	}
}
