package sagatest

import (
	"fmt"
	"testing"
)

// The bugs that tests plant.
const (
	AckBeforeCommit     = ackBeforeCommit
	DedupeBeforeWork    = dedupeBeforeWork
	NoTombstone         = noTombstone
	UndoNotDeduped      = undoNotDeduped
	PublishBeforeCommit = publishBeforeCommit
	MarkBeforePublish   = markBeforePublish
	KeyWithoutN         = keyWithoutN
	FoldTwice           = foldTwice
	ForwardOrder        = forwardOrder
	ForgetTimedOut      = forgetTimedOut
	IgnorePivot         = ignorePivot
	LateIsDone          = lateIsDone
)

// Bug is that of a system.
type Bug = bug

// Explored is what exploring has come to.
type Explored struct {
	Broken, Report, Schedule         string
	Lines, Schedules, States, Events int
}

// ExploreWith explores a model with a bug planted.
func ExploreWith[W, S any](t testing.TB, m Model[W, S], opts *ExploreOptions, planted Bug) Explored {
	x := newSearch(t, m, opts, planted)
	found := x.searchAll()
	e := Explored{Schedules: x.schedules, States: x.states, Events: x.events}
	if found != nil {
		e.Broken, e.Report, e.Lines, e.Schedule = found.broken, x.reportFinding(found), len(found.lines), found.scheduleText()
	}
	return e
}

// Ends explores a model and returns what it can come to: the outcome, the state and the world.
func Ends[W, S any](t testing.TB, m Model[W, S], opts *ExploreOptions, patient bool) map[string]bool {
	x := newSearch(t, m, opts, "")
	ends := map[string]bool{}
	x.patient = patient
	x.rested = func(s *modelState) {
		row := s.host.rows[""]
		ends[fmt.Sprint(statusOf(&row.Progress), row.flow.Machine.Why(&row.Progress), string(row.State), s.dead, *x.box.keep().(*W))] = true
	}
	if found := x.searchAll(); found != nil {
		t.Errorf("%s", x.reportFinding(found))
	}
	t.Logf("%d ends, %d events", len(ends), x.events)
	return ends
}
