package saga_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

func TestListAndCount(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	stay := saga.Must(saga.Define("stay", 1, book("hotel")))
	def := saga.Must(saga.Define("trip", 2, book("flight"), saga.Step[trip]{Name: "stay", Do: saga.Nested(stay, func(s *trip) trip { return *s }, nil)}))
	d.orchestrate(def)
	d.mute("hotel")
	d.participate(d.booking("flight"))
	start(d.place, def, "a", trip{Item: "x"})
	start(d.place, def, "b", trip{Item: "no flight"})
	start(d.place, def, "c", trip{Item: "x"})
	d.until("b", saga.StatusCompensated)
	for _, key := range []string{"a", "c"} {
		d.sees(saga.Address{Key: key}, "flight done, stay running")
	}
	d.exec("UPDATE {schema}.saga SET started_at = started_at - interval '3 h', updated_at = updated_at - interval '2 h' WHERE key = 'c'")
	for name, tt := range map[string]struct {
		filter operator.InstanceFilter
		want   string
	}{
		"all":          {operator.InstanceFilter{}, "a a@2.1 b c c@2.1"},
		"live":         {operator.InstanceFilter{Live: true}, "a a@2.1 c c@2.1"},
		"saga":         {operator.InstanceFilter{Saga: "stay"}, "a@2.1 c@2.1"},
		"version":      {operator.InstanceFilter{Version: 2}, "a b c"},
		"status":       {operator.InstanceFilter{Status: saga.StatusCompensated}, "b"},
		"status, live": {operator.InstanceFilter{Status: saga.StatusRunning}, "a a@2.1 c c@2.1"},
		"key":          {operator.InstanceFilter{Key: "c"}, "c c@2.1"},
		"scope":        {operator.InstanceFilter{Scope: "nobody"}, ""},
		"older":        {operator.InstanceFilter{Older: time.Hour}, "c c@2.1"},
		"silent":       {operator.InstanceFilter{Silent: time.Hour, Saga: "trip"}, "c"},
		"ended":        {operator.InstanceFilter{Ended: time.Hour}, "b"},
		"ended before": {operator.InstanceFilter{Ended: time.Microsecond}, ""},
		"both":         {operator.InstanceFilter{Older: time.Hour, Silent: 150 * time.Minute}, ""},
	} {
		var got []string
		for after := (saga.Address{}); ; {
			page, err := d.n.List(t.Context(), tt.filter, after, 2)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, i := range page {
				got = append(got, i.Key+map[bool]string{true: "@" + i.Path}[i.Path != ""])
				if (i.Path == "") != (i.Parent == "") || i.Path != "" && i.Parent != "trip" {
					t.Errorf("%s: the parent of %s is %q", name, i.Address, i.Parent)
				}
			}
			if len(page) < 2 {
				break
			}
			after = page[1].Address
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if n, err := d.n.Count(t.Context(), tt.filter); err != nil || n != len(got) {
			t.Errorf("%s: count %d, %v; want %d", name, n, err, len(got))
		}
	}
	if _, err := d.n.List(t.Context(), operator.InstanceFilter{Older: -1}, saga.Address{}, 1); err == nil {
		t.Error("a negative age is no error")
	}
}

func TestTimelineOfANestedSaga(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	stay := saga.Must(saga.Define("stay", 1, book("hotel"), book("spa")))
	def, err := saga.Must(saga.Define("trip", 1, book("flight"),
		saga.Step[trip]{Name: "there", Seq: []saga.Step[trip]{
			{Name: "stay", Do: saga.Nested(stay, func(s *trip) trip { return *s }, nil)}, forward("car", 1),
		}})).Within(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	d.orchestrate(def)
	d.mute("hotel")
	d.participate(d.booking("flight"), d.booking("spa"))
	start(d.place, def, "k", trip{Item: "x"})
	got := d.sees(outermost, "flight done, stay running, car to-come")
	within := saga.Address{Scope: "tenant", Key: "k", Path: "2.1"}
	if s := got.Steps[2]; s.Depth != 1 || s.Nested == nil || s.Nested.Address != within || s.Nested.Saga != "stay" || !strings.HasSuffix(s.N, "-2.1") {
		t.Errorf("the nested step is %+v", s)
	}
	if want := [][]string{{"stay"}, {"flight"}}; !cmp.Equal(got.Undo, want) || got.Deadline.Sub(got.StartedAt) != time.Hour {
		t.Errorf("would undo %q, want %q; deadline %s", got.Undo, want, got.Deadline)
	}
	for _, verb := range []operator.Verb{operator.VerbSkip, operator.VerbReject} {
		d.refused("k", verb, "stay", "which has not ended: decide about that, at the path 2.1")
	}
	if got := d.sees(saga.Address{Key: "k", Path: "2.1"}, "hotel running, spa to-come"); got.Parent != "trip" || len(got.Nested) != 0 {
		t.Errorf("nested: %+v", got.Instance)
	}
	if _, err := d.decideAt(within, operator.Decision{Verb: operator.VerbSkip, Step: "hotel"}); err != nil {
		t.Fatal(err)
	}
	d.sees(outermost, "flight done, stay done, car running")
}

// A person who ends a nested saga has its parent told.
func TestDecisionsThatEndANestedSaga(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	stay := saga.Must(saga.Define("stay", 1, forward("hotel", 1)))
	def := saga.Must(saga.Define("trip", 1, book("flight"), saga.Step[trip]{Name: "stay", Do: saga.Nested(stay, func(s *trip) trip { return *s }, nil)}))
	d.orchestrate(def)
	d.mute("hotel")
	d.participate(d.booking("flight"))
	for verb, want := range map[operator.Verb]saga.Status{operator.VerbSkip: saga.StatusCompleted, operator.VerbReject: saga.StatusCompensated, operator.VerbCancel: saga.StatusCompensated} {
		key := string(verb)
		start(d.place, def, key, trip{Item: "x"})
		within := saga.Address{Key: key, Path: "2.1"}
		d.sees(within, "hotel running")
		do := operator.Decision{Verb: verb, Step: "hotel"}
		if verb == operator.VerbCancel {
			do.Step = ""
		}
		is, err := d.decideAt(within, do)
		if err != nil || is.Status != want || is.EndedAt.IsZero() {
			t.Errorf("%s: %s, %v; want it %s at once", verb, is.Status, err, want)
		}
		d.until(key, want)
	}
}

func TestGetAndDecideRefuseWhatThereIsNot(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	start(d.place, def, "k", trip{Item: "x"})
	got := d.get("k") // no orchestrator has ever run
	if !strings.Contains(got.PlanProblem, "no orchestrator has registered") || states(got) != "#1 running, #2 to-come" {
		t.Errorf("%q, %s; want it said that the plan is not known", got.PlanProblem, states(got))
	}
	if _, err := d.decide("k", operator.VerbCancel, ""); !errors.Is(err, operator.ErrPlanUnknown) || !strings.Contains(err.Error(), "trip, version 1") {
		t.Errorf("cancel: %v, want %v", err, operator.ErrPlanUnknown)
	}
	d.orchestrate(def)
	d.mute("flight", "hotel")
	d.exec("INSERT INTO {schema}.saga (scope, key, path, id, root, name, version, plan_hash, status, progress, state, started_at, updated_at) SELECT 'other', key, path, id, root, name, version, plan_hash, status, progress, state, started_at, updated_at FROM {schema}.saga")
	_, err := d.n.Get(t.Context(), outermost)
	var several *operator.AmbiguousError
	if !errors.As(err, &several) || len(several.Addresses) != 2 || !strings.Contains(err.Error(), "other/k; tenant/k") {
		t.Errorf("get: %v, want both scopes named", err)
	}
	if _, err := d.decide("k", operator.VerbPause, ""); !errors.Is(err, operator.ErrAmbiguous) {
		t.Errorf("pause: %v, want %v", err, operator.ErrAmbiguous)
	}
	at := saga.Address{Scope: "tenant", Key: "k"}
	for name, tt := range map[string]struct {
		at   saga.Address
		do   operator.Decision
		want string
	}{
		"no such key":          {saga.Address{Key: "none"}, operator.Decision{Verb: operator.VerbPause}, saga.ErrNoInstance.Error()},
		"no such scope":        {saga.Address{Scope: "x", Key: "k"}, operator.Decision{Verb: operator.VerbPause}, saga.ErrNoInstance.Error()},
		"no such path":         {saga.Address{Scope: "tenant", Key: "k", Path: "1.1"}, operator.Decision{Verb: operator.VerbPause}, saga.ErrNoInstance.Error()},
		"no such verb":         {at, operator.Decision{Verb: "undo"}, `no verb "undo"`},
		"no such step":         {at, operator.Decision{Verb: operator.VerbSkip, Step: "bus"}, `no step "bus" in trip, version 1: its steps are flight, hotel`},
		"a step too many":      {at, operator.Decision{Verb: operator.VerbPause, Step: "flight"}, "not about a step"},
		"no step":              {at, operator.Decision{Verb: operator.VerbReject}, "needs the name of a step"},
		"a result too many":    {at, operator.Decision{Verb: operator.VerbReject, Step: "flight", Result: json.RawMessage("1")}, "only a step that is skipped"},
		"a result is not JSON": {at, operator.Decision{Verb: operator.VerbSkip, Step: "flight", Result: json.RawMessage("{")}, "not JSON"},
		"an empty result":      {at, operator.Decision{Verb: operator.VerbSkip, Step: "flight", Result: json.RawMessage{}}, "not JSON"},
		"a large result":       {at, operator.Decision{Verb: operator.VerbSkip, Step: "flight", Result: json.RawMessage(`"` + strings.Repeat("x", flow.MaxState) + `"`)}, "more than"},
	} {
		if _, err := d.decideAt(tt.at, tt.do); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
	for _, do := range []operator.Decision{{Verb: operator.VerbPause, By: "ann"}, {Verb: operator.VerbPause, Why: "so"}, {Verb: operator.VerbPause, By: " ", Why: "so"}} {
		if _, err := d.n.Decide(t.Context(), at, do); err == nil || !strings.Contains(err.Error(), "who decides") {
			t.Errorf("%+v: %v, want who and why asked for", do, err)
		}
	}
	d.exec(`UPDATE {schema}.saga_definition SET plan = replace(plan, 'hotel', 'flight')`)
	if got := d.getAt(at); !strings.Contains(got.PlanProblem, `"flight" is given twice`) {
		t.Errorf("a plan that cannot be: %q", got.PlanProblem)
	}
	if got := d.getAt(at); len(got.Journal) != 0 || got.Status != saga.StatusRunning {
		t.Errorf("what was refused has left %+v, %s", got.Journal, got.Status)
	}
}

// Decisions and replies take turns: whichever comes first, a saga ends one way.
func TestDecisionsRaceWithReplies(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel"), book("car")))
	d.orchestrate(def)
	d.participate(d.booking("flight"), d.booking("hotel"), d.booking("car"))
	var wg sync.WaitGroup
	for n := range 16 {
		key := fmt.Sprintf("k%d", n)
		start(d.place, def, key, trip{Item: "x"})
		cancelled := make(chan error, 2)
		for range 2 {
			wg.Go(func() {
				_, err := d.n.Decide(t.Context(), saga.Address{Scope: "tenant", Key: key}, operator.Decision{Verb: operator.VerbCancel, By: "ann", Why: "race"})
				cancelled <- err
			})
		}
		wg.Go(func() {
			for i := 0; i < n%4; i++ { // so that the others come later
				_, _ = d.n.Get(t.Context(), saga.Address{Scope: "tenant", Key: key})
			}
			_, err := d.n.Decide(t.Context(), saga.Address{Scope: "tenant", Key: key}, operator.Decision{Verb: operator.VerbRetry, Step: "flight", By: "bob", Why: "race"})
			if err != nil && !errors.Is(err, operator.ErrRefused) {
				t.Errorf("retry: %v", err)
			}
		})
		wg.Wait()
		a, b := <-cancelled, <-cancelled
		want := saga.StatusCompensated
		switch {
		case a == nil && b == nil:
			t.Errorf("%s was cancelled twice", key)
		case a != nil && b != nil:
			want = saga.StatusCompleted // it was too late
		}
		for _, err := range []error{a, b} {
			if err != nil && !errors.Is(err, operator.ErrRefused) {
				t.Errorf("cancel: %v", err)
			}
		}
		d.until(key, want)
		undone := strings.Count(d.effects(key), "no ")
		if all := len(strings.Fields(strings.ReplaceAll(d.effects(key), "no ", "no-"))); want == saga.StatusCompensated && undone*2 != all || want == saga.StatusCompleted && all != 3 {
			t.Errorf("%s is %s with the effects %s", key, want, d.effects(key))
		}
	}
}
