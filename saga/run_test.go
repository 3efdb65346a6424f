package saga_test

import (
	"strings"
	"testing"

	"github.com/sagamill/sagamill/saga"
)

func TestASagaRunsToItsEnd(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := saga.Must(saga.Define("trip", 1,
		saga.Step[trip]{Name: "book", All: []saga.Step[trip]{book("flight"), book("hotel")}},
		book("car"),
	))
	p.orchestrate(nil, d)
	p.participate(p.booking("flight"), p.booking("hotel"), p.booking("car"))

	start(p, d, "good", trip{Item: "x"})
	p.until("good", saga.StatusCompleted)
	if got := p.effects("good"); !strings.HasSuffix(got, " car]") || len(strings.Fields(got)) != 3 {
		t.Errorf("effects %s, want flight and hotel, and then car", got)
	}

	start(p, d, "bad", trip{Item: "no car"})
	reason := p.until("bad", saga.StatusCompensated)
	if want := "step car was rejected: there is none"; reason != want {
		t.Errorf("reason %q, want %q", reason, want)
	}
	if got := p.effects("bad"); !strings.Contains(got, "no flight") || !strings.Contains(got, "no hotel") || strings.Contains(got, "car") {
		t.Errorf("effects %s, want flight and hotel done and undone", got)
	}
}
