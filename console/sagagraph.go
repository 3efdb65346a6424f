package console

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sagamill/sagamill/operator"
)

const (
	laneLabel = 200 // width of the names of the services
	laneGap   = 70  // between columns
	laneRow   = boxHeight + 16
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
	undo   bool                    // it is the compensation of the step
	topic  string                  // of the messages that lead to it
	first  *operator.OutboxMessage // that leads to it or, of an origin, that comes from it
	origin bool
	leads  bool // to others
	column int
	slot   int // within its lane and column
}

type graphEdge struct {
	from, to *graphNode
	message  *operator.OutboxMessage
	guessed  bool // from the times: the message names another step of the same topic
}

// A writtenMessage is a message with the part that has written it.
type writtenMessage struct {
	part    *operator.SagaPart
	message *operator.OutboxMessage
}

// buildGraph connects the messages of a saga by what caused them, the oldest first.
func buildGraph(s *sagaReading) *messageGraph {
	g := &messageGraph{}
	var written []writtenMessage
	for _, part := range s.Parts {
		for i := range part.Inbox.Steps {
			g.addRow(part, &part.Inbox.Steps[i])
		}
		for i := range part.Outbox.Messages {
			written = append(written, writtenMessage{part, &part.Outbox.Messages[i]})
		}
	}
	slices.SortStableFunc(written, func(a, b writtenMessage) int { return a.message.CreatedAt.Compare(b.message.CreatedAt) })
	handled := map[string][]*graphNode{} // by the id of the message that leads to them
	for _, w := range written {
		if len(g.nodes) > maxBoxes {
			break
		}
		from := g.sourceOf(w, handled[w.message.CausationID])
		targets := g.targetsOf(w)
		handled[w.message.MessageID] = targets
		for _, to := range targets {
			g.connect(graphEdge{from, to, w.message, false})
		}
		from.leads = true
	}
	g.guessCauses()
	return g
}

// connect adds an edge, and puts its target behind its source. A loop of messages leads back.
func (g *messageGraph) connect(e graphEdge) {
	g.edges = append(g.edges, e)
	if e.to != e.from && !e.to.leads && e.to.column <= e.from.column {
		e.to.column = e.from.column + 1
	}
}

// guessCauses connects steps that no message names. A service that listens to a topic may handle its messages under
// another name: the last message before such a step, to another service, has probably led to it.
func (g *messageGraph) guessCauses() {
	known := g.edges
	for _, n := range g.nodes {
		if n.row == nil || slices.ContainsFunc(known, func(e graphEdge) bool { return e.to == n }) {
			continue
		}
		for _, e := range slices.Backward(known) { // the edges are in the order of their messages
			if !e.message.CreatedAt.After(n.row.CreatedAt) && e.message.N == n.row.N && e.from.part != n.part {
				g.connect(graphEdge{e.from, n, e.message, true})
				break
			}
		}
	}
}

// addRow adds the nodes of a row: of the action unless it has never run, and of the compensation.
func (g *messageGraph) addRow(part *operator.SagaPart, row *operator.StepRow) {
	undone := row.UndoAttempts > 0 || slices.Contains([]string{"undoing", "undo-dead", "compensated", "void"}, row.State)
	if row.State != "void" {
		g.nodes = append(g.nodes, &graphNode{part: part, row: row})
	}
	if undone {
		g.nodes = append(g.nodes, &graphNode{part: part, row: row, undo: true})
	}
}

// sourceOf returns the step of a service that has written a message, or an origin.
func (g *messageGraph) sourceOf(w writtenMessage, caused []*graphNode) *graphNode {
	for _, n := range caused {
		if n.part == w.part {
			return n
		}
	}
	known := w.message.CausationID == ""
	i := slices.IndexFunc(g.nodes, func(n *graphNode) bool {
		return n.origin && n.part == w.part && (n.first.CausationID == "") == known
	})
	if i >= 0 {
		return g.nodes[i]
	}
	n := &graphNode{part: w.part, first: w.message, origin: true}
	g.nodes = append(g.nodes, n)
	return n
}

// targetsOf returns the steps that a message is for. Of the messages to one step, those of the first topic are for its
// action, and those of another topic for its compensation. If no inbox has recorded the message, the target is a node in
// the lane of its writer.
func (g *messageGraph) targetsOf(w writtenMessage) (all []*graphNode) {
	m := w.message
	for _, n := range g.nodes {
		if n.row == nil || n.row.Step != m.Step || n.row.N != m.N || n.topic != "" && n.topic != m.Topic {
			continue
		}
		if slices.ContainsFunc(all, func(other *graphNode) bool { return other.row == n.row }) {
			continue // the message is for the action
		}
		n.topic = m.Topic
		all = append(all, n)
	}
	if len(all) == 0 {
		all = []*graphNode{{part: w.part, first: m}}
		g.nodes = append(g.nodes, all[0])
	}
	return all
}

// name, label and tone say what a node is.
func (n *graphNode) name() string {
	switch {
	case n.row != nil && n.undo:
		return "undo " + n.row.Step
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
		return n.describeRow()
	case n.origin && n.first.CausationID == "":
		return "begin", "first message", n.first.CreatedAt.UTC().Format("15:04:05")
	case n.origin:
		return "off", "no longer in the log", ""
	case n.first.Place == operator.PlacePublished:
		return "todo", "published, not recorded", n.first.CreatedAt.UTC().Format("15:04:05")
	case n.first.Place == operator.PlaceDead, n.first.Place == operator.PlaceRefused:
		return "stuck", string(n.first.Place) + " by the broker", n.first.Reason
	}
	return "wait", string(n.first.Place) + " in the outbox", n.first.CreatedAt.UTC().Format("15:04:05")
}

// describeRow says what a row says of the action, or of the compensation.
func (n *graphNode) describeRow() (tone, label, note string) {
	look, known := rowTones[n.row.State]
	if !known {
		look = [2]string{"todo", n.row.State}
	}
	tone, label, note = look[0], n.row.State, n.row.UpdatedAt.UTC().Format("15:04:05")
	attempts := n.row.Attempts
	switch {
	case n.undo:
		attempts = n.row.UndoAttempts
	case n.row.UndoAttempts > 0 || n.row.State == "compensated":
		tone, label, note = "done", "done, then undone", n.row.CreatedAt.UTC().Format("15:04:05")
	}
	if attempts > 1 {
		note = fmt.Sprintf("%d attempts, %s", attempts, note)
	}
	return tone, label, note
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
		d.Lanes = append(d.Lanes, drawnLane{Y: top, H: rows*laneRow + 16, TextY: top + 24, Label: visibleText(clipText(part.Name, 24)), Even: len(d.Lanes)%2 == 0})
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
		line.Faint, line.Title = e.guessed, visibleText(clipText(e.message.Type+" by "+e.message.Topic, 200))
		d.List = append(d.List, visibleText(clipText(fmt.Sprintf("message %s %s from %s to %s", e.message.Type, map[bool]string{false: "leads", true: "probably leads"}[e.guessed], e.from.name(), e.to.name()), 300)))
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
