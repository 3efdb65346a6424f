package saga_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/saga"
)

func pictured() *saga.Definition[trip] {
	inner := saga.Must(saga.Define("inner", 1, book("room")))
	car := book("car")
	car.When = func(*trip) bool { return true }
	ticket := saga.Step[trip]{Name: "ticket", Do: saga.Tell[trip, any]("ticket.issue", nil), Pivot: true}
	return saga.Must(saga.Define("trip", 2,
		saga.Step[trip]{Name: "book", All: []saga.Step[trip]{
			book("flight"),
			{Name: "ground", Seq: []saga.Step[trip]{car, {Name: "stay", Do: saga.Nested(inner, func(s *trip) trip { return *s }, nil)}}},
		}},
		ticket,
		after(saga.Step[trip]{Name: "note", Do: saga.Local(nop)}),
	))
}

func ExampleDefinition_Mermaid() {
	fmt.Println(pictured().Mermaid())
	// Output:
	// ---
	// title: trip, version 2
	// ---
	// flowchart LR
	//   n0(("start"))
	//   n1(("end"))
	//   n2["flight"]
	//   n0 --> n2
	//   n3>"undo flight"]
	//   n2 -.-> n3
	//   n4["car?"]
	//   n0 --> n4
	//   n5>"undo car"]
	//   n4 -.-> n5
	//   n6["stay: saga inner"]
	//   n4 --> n6
	//   n7{{"ticket"}}
	//   n2 --> n7
	//   n6 --> n7
	//   n8("note")
	//   n7 --> n8
	//   n8 --> n1
}

// Both pictures have the same nodes and arrows.
func TestDOTShowsWhatMermaidShows(t *testing.T) {
	t.Parallel()
	d := pictured()
	picture, chart := d.DOT(), d.Mermaid()
	if !strings.HasPrefix(picture, "digraph \"trip\" {\n") || !strings.HasSuffix(picture, "}\n") {
		t.Errorf("no graph: %s", picture)
	}
	for _, pair := range [][2]string{{" -> ", "->"}, {"label=\"undo", "undo"}, {"shape=hexagon", "{{"}} {
		want := strings.Count(chart, pair[1])
		if got := strings.Count(picture, pair[0]); got != want || got == 0 {
			t.Errorf("%d of %q in DOT, %d of %q in Mermaid", got, pair[0], want, pair[1])
		}
	}
}
