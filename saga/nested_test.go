package saga_test

import (
	"strings"
	"testing"

	"github.com/sagamill/sagamill/saga"
)

// A tour is a saga around another one.
type tour struct {
	Item    string `json:"item"`
	Numbers int    `json:"numbers"`
}

func nestedTour(t testing.TB, last string) *saga.Definition[tour] {
	t.Helper()
	inner := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	d, err := saga.Define("tour", 1,
		saga.Step[tour]{Name: "trip", Do: saga.Nested(inner,
			func(s *tour) trip { return trip{Item: s.Item} },
			func(s *tour, c trip) { s.Numbers = len(c.Numbers) })},
		saga.Step[tour]{Name: last, Do: saga.Tell(last+".book", func(s *tour) request { return request{Item: s.Item} })},
	)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestANestedSagaIsAPartOfAnother(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := nestedTour(t, "car")
	p.orchestrate(nil, d)
	p.participate(p.booking("flight"), p.booking("hotel"), p.booking("car"))
	for _, tt := range []struct {
		item    string
		status  saga.Status
		effects string
		inner   string
	}{
		{"x", saga.StatusCompleted, "[flight hotel car]", "completed"},
		{"no hotel", saga.StatusCompensated, "[flight no flight]", "compensated"},              // the inner one rejects
		{"no car", saga.StatusCompensated, "[flight hotel no hotel no flight]", "compensated"}, // the outer one undoes it
	} {
		key := strings.ReplaceAll(tt.item, " ", "-")
		start(p, d, key, tour{Item: tt.item})
		p.until(key, tt.status)
		if got := p.effects(key); got != tt.effects {
			t.Errorf("%s: effects %s, want %s", tt.item, got, tt.effects)
		}
		var status, state string
		err := p.db.QueryRow(t.Context(), "SELECT status, (SELECT state FROM "+p.schema+".saga WHERE key = $1 AND path = '') FROM "+p.schema+".saga WHERE key = $1 AND path = '1.1'", key).Scan(&status, &state)
		if err != nil || status != tt.inner {
			t.Errorf("%s: the nested instance is %s, %v; want %s", tt.item, status, err, tt.inner)
		}
		if tt.status == saga.StatusCompleted && !strings.Contains(state, `"numbers":2`) {
			t.Errorf("%s: state %s has not taken over what the nested saga came to", tt.item, state)
		}
	}
}

// The correlation id of all that happens is the outermost instance's.
func TestANestedSagaHasTheCorrelationOfTheOutermost(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := nestedTour(t, "car")
	p.orchestrate(nil, d)
	p.participate(p.booking("flight"), p.booking("hotel"), p.booking("car"))
	started := start(p, d, "k", tour{Item: "x"})
	p.until("k", saga.StatusCompleted)
	var root string
	err := p.db.QueryRow(t.Context(), "SELECT root FROM "+p.schema+".saga WHERE path = '1.1'").Scan(&root)
	if err != nil || root != started.ID {
		t.Errorf("root of the nested instance is %s, %v; want %s", root, err, started.ID)
	}
}
