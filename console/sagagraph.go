package console

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sagamill/sagamill/operator"
)

const (
	laneLabel  = 150 // width of the names of the services
	laneGap    = 70  // between columns
	laneRow    = boxHeight + 16
	maxColumns = 60
)

// A messageGraph says which message led to which step of which service.
type messageGraph struct {
	nodes []*graphNode
	edges []graphEdge
}

// A graphNode is a step that has handled a message, or will; or where the first messages come from.
type graphNode struct {
	part   *operator.SagaPart
	row    *operator.StepRow       // nil: no inbox has it
	first  *operator.OutboxMessage // that leads to it or, of an origin, that comes from it
	origin bool
	column int
	slot   int // within its lane and column
}

type graphEdge struct {
	from, to *graphNode
	message  *operator.OutboxMessage
}

// buildGraph connects the messages of a saga by what caused them.
func buildGraph(s *sagaReading) *messageGraph {
	g := &messageGraph{}
	for _, part := range s.Parts {
		for i := range part.Inbox.Steps {
			g.nodes = append(g.nodes, &graphNode{part: part, row: &part.Inbox.Steps[i]})
		}
	}
	byID := map[string]*operator.OutboxMessage{}
	for _, part := range s.Parts {
		for i := range part.Outbox.Messages {
			byID[part.Outbox.Messages[i].MessageID] = &part.Outbox.Messages[i]
		}
	}
	for _, part := range s.Parts {
		for i := range part.Outbox.Messages {
			if len(g.nodes) > maxBoxes {
				break
			}
			m := &part.Outbox.Messages[i]
			from := g.sourceOf(part, m, byID[m.CausationID])
			for _, to := range g.targetsOf(part, m) {
				g.edges = append(g.edges, graphEdge{from, to, m})
			}
		}
	}
	g.chooseColumns()
	return g
}

// sourceOf returns the step of a service that has written a message, or an origin.
func (g *messageGraph) sourceOf(part *operator.SagaPart, m, cause *operator.OutboxMessage) *graphNode {
	if cause != nil {
		i := slices.IndexFunc(g.nodes, func(n *graphNode) bool {
			return n.part == part && n.row != nil && n.row.Step == cause.Step && n.row.N == cause.N
		})
		if i >= 0 {
			return g.nodes[i]
		}
	}
	i := slices.IndexFunc(g.nodes, func(n *graphNode) bool {
		return n.origin && n.part == part && (n.first.CausationID == "") == (m.CausationID == "")
	})
	if i >= 0 {
		return g.nodes[i]
	}
	n := &graphNode{part: part, first: m, origin: true}
	g.nodes = append(g.nodes, n)
	return n
}

// targetsOf returns the steps that a message is for. If no inbox has recorded it, that is a node in the lane of its writer.
func (g *messageGraph) targetsOf(part *operator.SagaPart, m *operator.OutboxMessage) (all []*graphNode) {
	for _, n := range g.nodes {
		if n.row != nil && n.row.Step == m.Step && n.row.N == m.N {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		all = []*graphNode{{part: part, first: m}}
		g.nodes = append(g.nodes, all[0])
	}
	return all
}

// chooseColumns puts each step behind those that led to it. A loop of messages ends at the last column.
func (g *messageGraph) chooseColumns() {
	for range maxColumns {
		moved := false
		for _, e := range g.edges {
			if e.from != e.to && e.to.column <= e.from.column && e.from.column+1 < maxColumns {
				e.to.column, moved = e.from.column+1, true
			}
		}
		if !moved {
			return
		}
	}
}

// name, label and tone say what a node is.
func (n *graphNode) name() string {
	switch {
	case n.row != nil:
		return n.row.Step
	case n.origin && n.first.CausationID == "":
		return "request"
	case n.origin:
		return "earlier message"
	}
	return cmp.Or(n.first.Step, n.first.Topic)
}

func (n *graphNode) describe() (tone, label, note string) {
	switch {
	case n.row != nil:
		look, known := rowTones[n.row.State]
		if !known {
			look = [2]string{"todo", n.row.State}
		}
		note = n.row.UpdatedAt.UTC().Format("15:04:05")
		if n.row.Attempts+n.row.UndoAttempts > 1 {
			note = fmt.Sprintf("%d attempts, %s", n.row.Attempts+n.row.UndoAttempts, note)
		}
		return look[0], n.row.State, note
	case n.origin && n.first.CausationID == "":
		return "begin", "wrote the first message", n.first.CreatedAt.UTC().Format("15:04:05")
	case n.origin:
		return "off", "no longer in the log", ""
	case n.first.Place == operator.PlacePublished:
		return "todo", "published, not recorded", n.first.CreatedAt.UTC().Format("15:04:05")
	case n.first.Place == operator.PlaceDead, n.first.Place == operator.PlaceRefused:
		return "stuck", string(n.first.Place) + " by the broker", n.first.Reason
	}
	return "wait", string(n.first.Place) + " in the outbox", n.first.CreatedAt.UTC().Format("15:04:05")
}

// drawMessages draws the messages of a saga without an instance: a lane for each service, and the steps in the order in
// which messages led to them.
func drawMessages(s *sagaReading) *drawing {
	g := buildGraph(s)
	d := &drawing{}
	columns, top := 0, 0
	lanes := map[*operator.SagaPart]int{} // where each begins
	for _, part := range s.Parts {
		rows := g.fillLane(part)
		if rows == 0 {
			continue
		}
		lanes[part] = top
		d.Lanes = append(d.Lanes, drawnLane{Y: top, H: rows*laneRow + 16, TextY: top + 24, Label: visibleText(clipText(part.Name, 18)), Even: len(d.Lanes)%2 == 0})
		top += rows*laneRow + 16
	}
	at := map[*graphNode][2]int{}
	for _, n := range g.nodes {
		x, y := laneLabel+n.column*(boxWidth+laneGap), lanes[n.part]+16+n.slot*laneRow
		at[n] = [2]int{x, y}
		columns = max(columns, n.column+1)
		tone, label, note := n.describe()
		d.addBox(drawnBox{X: x, Y: y, Tone: tone, Name: n.name(), Label: label, Note: note, Dashed: n.row == nil})
	}
	for _, e := range g.edges {
		from, to := at[e.from], at[e.to]
		if e.from == e.to {
			continue
		}
		d.addCurve(from[0]+boxWidth, from[1]+boxHeight/2, to[0], to[1]+boxHeight/2)
		line := &d.Lines[len(d.Lines)-1]
		line.Title = visibleText(clipText(e.message.Type+" by "+e.message.Topic, 200))
		d.List = append(d.List, visibleText(clipText(fmt.Sprintf("message %s leads from %s to %s", e.message.Type, e.from.name(), e.to.name()), 300)))
	}
	d.Width, d.Height = laneLabel+max(1, columns)*(boxWidth+laneGap)-laneGap+drawingPad, max(top, 40)
	d.Clipped = len(g.nodes) > maxBoxes
	d.Summary = fmt.Sprintf("No orchestrator coordinates this saga. %s of %s, connected by %s.",
		formatPlural(len(d.Boxes), "step", "steps"), formatPlural(len(d.Lanes), "service", "services"), formatPlural(len(g.edges), "message", "messages"))
	return d
}

// fillLane sets the slots of the nodes in a lane, and returns how many it needs.
func (g *messageGraph) fillLane(part *operator.SagaPart) (rows int) {
	used := map[int]int{}
	for _, n := range g.nodes {
		if n.part == part {
			n.slot = used[n.column]
			used[n.column]++
			rows = max(rows, used[n.column])
		}
	}
	return rows
}
