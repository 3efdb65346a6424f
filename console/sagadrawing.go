package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/operator"
)

// The sizes of a drawing, in CSS pixels. Texts are clipped to what a box of this width has room for.
const (
	boxWidth, boxHeight = 168, 86
	boxGap              = 28 // between boxes along the way
	rowGap              = 14 // between boxes that run at once
	framePad, frameHead = 18, 24
	drawingPad          = 12
	endRadius           = 7
	maxBoxes            = 400

	nameChars, labelChars, noteChars = 17, 21, 25
)

// A drawing is an SVG image with the texts that stand for it.
type drawing struct {
	Width, Height int
	Boxes         []drawnBox
	Frames        []drawnFrame
	Lanes         []drawnLane
	Lines         []drawnLine
	Dots          []drawnDot
	Summary       string   // in a sentence
	List          []string // what the boxes say, in order
	Clipped       bool     // it has only the first maxBoxes boxes
}

// A drawnBox is a step.
type drawnBox struct {
	X, Y                               int
	Tone, Name, Label, Note            string
	Mark                               string // what would be undone, or that it is the pivot
	Title                              string // all of it
	Dashed                             bool
	NameY, LabelY, NoteY, MarkY, TextX int
}

// A drawnFrame is around steps: a group, or a nested saga.
type drawnFrame struct {
	X, Y, W, H, TextX, TextY int
	Label                    string
	Nested                   bool
}

// A drawnLane is a service.
type drawnLane struct {
	Y, H, TextY int
	Label       string
	Even        bool
}

type drawnLine struct {
	Path  string
	Title string // "": none
	Faint bool
}

type drawnDot struct {
	X, Y  int
	Tone  string
	Title string
}

// A look is how a state looks.
type look struct{ label, tone string }

var looks = map[operator.StepState]look{
	operator.StepToCome: {"to come", "todo"}, operator.StepNever: {"will not run", "off"}, operator.StepRunning: {"running", "run"},
	operator.StepWaiting: {"retrying", "wait"}, operator.StepDone: {"done", "done"}, operator.StepSkipped: {"skipped", "off"},
	operator.StepRejected: {"had no effect", "reject"}, operator.StepUnknown: {"effect unknown", "wait"}, operator.StepStuck: {"stuck", "stuck"},
	operator.StepUndoing: {"compensating", "undo"}, operator.StepUndoWaiting: {"retrying compensation", "wait"},
	operator.StepUndoStuck: {"compensation stuck", "stuck"}, operator.StepUndone: {"undone", "undone"},
}

func lookOf(state operator.StepState) look {
	if l, known := looks[state]; known {
		return l
	}
	return look{string(state), "todo"}
}

// groupLabels say what a group does with its steps.
var groupLabels = map[string]string{"all": "in parallel", "seq": "one after the other"}

// A block is a part of the drawing of an instance: a step, or a group with its blocks.
type block struct {
	step   *operator.TimelineStep
	kids   []*block
	label  string // of a frame
	nested bool
	across bool // its blocks run at once, and are drawn one below the other
	note   string
	mark   string
	w, h   int
}

// drawInstance draws the plan of an instance with the state of each step. all are the instance and those nested in it.
func drawInstance(t *operator.Timeline, all []operator.Timeline) *drawing {
	b := &blockBuilder{all: all}
	d := &drawing{}
	root := &block{kids: b.buildFlow(t)}
	root.measure()
	d.Width, d.Height = root.w+2*(drawingPad+2*endRadius+boxGap), root.h+2*drawingPad
	middle := drawingPad + root.h/2
	begin := drawingPad + endRadius
	d.Dots = append(d.Dots, drawnDot{begin, middle, "begin", "began"}, drawnDot{d.Width - begin, middle, "end-" + string(t.Status), string(t.Status)})
	d.place(root, begin+endRadius+boxGap, middle)
	d.addArrow(begin+endRadius, middle, begin+endRadius+boxGap, middle)
	d.addArrow(begin+endRadius+boxGap+root.w, middle, d.Width-begin-endRadius, middle)
	d.Clipped = b.count > maxBoxes
	d.Summary = summarizeSteps(t)
	return d
}

// summarizeSteps counts the steps by state, in the order in which the states first occur.
func summarizeSteps(t *operator.Timeline) string {
	counts := map[string]int{}
	var order []string
	for i := range t.Steps {
		if t.Steps[i].Number == 0 {
			continue
		}
		label := lookOf(t.Steps[i].State).label
		if counts[label] == 0 {
			order = append(order, label)
		}
		counts[label]++
	}
	parts := make([]string, len(order))
	for i, label := range order {
		parts[i] = fmt.Sprintf("%d %s", counts[label], label)
	}
	return fmt.Sprintf("Saga %s, version %d, is %s. Steps: %s.", t.Saga, t.Version, t.StatusText(), strings.Join(parts, ", "))
}

// A blockBuilder makes blocks of timelines.
type blockBuilder struct {
	all   []operator.Timeline
	count int
}

// buildFlow returns the blocks of an instance.
func (b *blockBuilder) buildFlow(t *operator.Timeline) []*block {
	rest := t.Steps
	return b.buildLevel(t, &rest, 0)
}

// buildLevel takes the steps of one depth from rest, with what is in them.
func (b *blockBuilder) buildLevel(t *operator.Timeline, rest *[]operator.TimelineStep, depth int) (level []*block) {
	for len(*rest) > 0 && (*rest)[0].Depth == depth && b.count <= maxBoxes {
		step := &(*rest)[0]
		*rest = (*rest)[1:]
		if step.Number == 0 {
			level = append(level, &block{kids: b.buildLevel(t, rest, depth+1), label: clipText(step.Name+": "+groupLabels[step.Kind], 40), across: step.Kind == "all"})
			continue
		}
		b.count++
		level = append(level, b.buildStep(t, step))
	}
	return level
}

func (b *blockBuilder) buildStep(t *operator.Timeline, step *operator.TimelineStep) *block {
	if step.Nested != nil {
		if i := slices.IndexFunc(b.all, func(other operator.Timeline) bool { return other.Path == step.Nested.Path }); i >= 0 && b.all[i].Path != t.Path {
			nested := &b.all[i]
			label := fmt.Sprintf("%s: saga %s, %s", step.Name, nested.Saga, lookOf(step.State).label)
			return &block{step: step, kids: b.buildFlow(nested), label: clipText(label, 60), nested: true, mark: markOf(t, step)}
		}
	}
	return &block{step: step, note: noteOfStep(t, step), mark: markOf(t, step)}
}

// noteOfStep says in a few words how long a step took, or what it waits for.
func noteOfStep(t *operator.Timeline, s *operator.TimelineStep) string {
	tries := ""
	if s.Attempt > 1 {
		tries = fmt.Sprintf("attempt %d", s.Attempt)
	}
	join := func(text string) string { return strings.TrimPrefix(strings.TrimSuffix(tries+", "+text, ", "), ", ") }
	switch s.State {
	case operator.StepDone:
		if !s.Ended.IsZero() && !s.Began.IsZero() {
			return join("took " + formatDuration(s.Ended.Sub(s.Began)))
		}
	case operator.StepRunning:
		return join("for " + formatDuration(t.At.Sub(s.Sent)))
	case operator.StepUndoing:
		return join("for " + formatDuration(t.At.Sub(latestOf(s.UndoBegan, s.Sent))))
	case operator.StepWaiting, operator.StepUndoWaiting:
		if !s.Due.IsZero() {
			return join("again " + s.Due.UTC().Format("15:04:05"))
		}
	case operator.StepStuck, operator.StepUndoStuck, operator.StepRejected:
		return join(s.Reason)
	case operator.StepUndone:
		if !s.UndoEnded.IsZero() && !s.UndoBegan.IsZero() {
			return join("undone in " + formatDuration(s.UndoEnded.Sub(s.UndoBegan)))
		}
	}
	if s.Saga != "" {
		return join("saga " + s.Saga)
	}
	return tries
}

func latestOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// markOf says whether a cancellation would undo a step, and that the step is the pivot.
func markOf(t *operator.Timeline, s *operator.TimelineStep) string {
	var marks []string
	if s.Pivot {
		marks = append(marks, "pivot")
	}
	wave := slices.IndexFunc(t.Undo, func(names []string) bool { return slices.Contains(names, s.Name) })
	switch {
	case wave < 0:
	case t.Compensating && s.UndoBegan.IsZero():
		marks = append(marks, "to be undone")
	case !t.Compensating:
		marks = append(marks, "would be undone")
	}
	return strings.Join(marks, " · ")
}

// measure sets the sizes of a block and of those in it.
func (b *block) measure() {
	if len(b.kids) == 0 && !b.nested {
		b.w, b.h = boxWidth, boxHeight
		if b.step == nil {
			b.w, b.h = 0, 0
		}
		return
	}
	b.w, b.h = 0, 0
	for i, kid := range b.kids {
		kid.measure()
		switch {
		case b.across:
			b.w = max(b.w, kid.w)
			b.h += kid.h
			if i > 0 {
				b.h += rowGap
			}
		default:
			b.h = max(b.h, kid.h)
			b.w += kid.w
			if i > 0 {
				b.w += boxGap
			}
		}
	}
	if b.label != "" {
		b.w, b.h = max(b.w+2*(framePad+boxGap), 120), b.h+framePad+frameHead
	}
}

// place draws a block with its left edge at x, around the height of middle.
func (d *drawing) place(b *block, x, middle int) {
	if len(b.kids) == 0 {
		if b.step != nil {
			d.addStep(b, x, middle-b.h/2)
		}
		return
	}
	inner, center := x, middle
	if b.label != "" {
		top := middle - b.h/2
		d.Frames = append(d.Frames, drawnFrame{X: x, Y: top, W: b.w, H: b.h, TextX: x + framePad/2, TextY: top + 16, Label: visibleText(b.label), Nested: b.nested})
		inner, center = x+framePad+boxGap, top+frameHead+(b.h-frameHead-framePad)/2
		d.List = append(d.List, b.label)
	}
	if b.across {
		d.placeAcross(b, x, inner, middle)
		return
	}
	at := inner
	for i, kid := range b.kids {
		switch {
		case i > 0:
			d.addArrow(at-boxGap, center, at, center)
		case b.label != "":
			d.addCurve(x, middle, inner, center)
		}
		d.place(kid, at, center)
		at += kid.w + boxGap
	}
	if b.label != "" {
		d.addCurve(at-boxGap, center, x+b.w, middle)
	}
}

// placeAcross draws blocks that run at once, with lines that part and join.
func (d *drawing) placeAcross(b *block, x, inner, middle int) {
	top := middle - b.h/2 + frameHead
	for _, kid := range b.kids {
		at := inner + (b.w-2*(framePad+boxGap)-kid.w)/2
		center := top + kid.h/2
		d.addCurve(x, middle, at, center)
		d.place(kid, at, center)
		d.addCurve(at+kid.w, center, x+b.w, middle)
		top += kid.h + rowGap
	}
}

func (d *drawing) addArrow(x1, y1, x2, y2 int) {
	d.Lines = append(d.Lines, drawnLine{Path: fmt.Sprintf("M%d %dL%d %dM%d %dL%d %dL%d %d", x1, y1, x2-1, y2, x2-6, y2-4, x2-1, y2, x2-6, y2+4)})
}

// addCurve draws a line from a point to one at another height.
func (d *drawing) addCurve(x1, y1, x2, y2 int) {
	half := (x1 + x2) / 2
	d.Lines = append(d.Lines, drawnLine{Path: fmt.Sprintf("M%d %dC%d %d %d %d %d %dM%d %dL%d %dL%d %d", x1, y1, half, y1, half, y2, x2-1, y2, x2-6, y2-4, x2-1, y2, x2-6, y2+4)})
}

func (d *drawing) addStep(b *block, x, y int) {
	look := lookOf(b.step.State)
	d.addBox(drawnBox{X: x, Y: y, Tone: look.tone, Name: b.step.Name, Label: look.label, Note: b.note, Mark: b.mark,
		Dashed: b.step.State == operator.StepToCome || b.step.State == operator.StepNever})
}

// addBox adds a box with clipped texts, and an entry of the list with all of them.
func (d *drawing) addBox(b drawnBox) {
	b.Title = b.Name + ": " + b.Label
	for _, more := range []string{b.Note, b.Mark} {
		if more != "" {
			b.Title += ", " + more
		}
	}
	b.Title = visibleText(clipText(b.Title, 300))
	d.List = append(d.List, b.Title)
	b.TextX, b.NameY, b.LabelY, b.NoteY, b.MarkY = b.X+14, b.Y+21, b.Y+39, b.Y+57, b.Y+74
	b.Name, b.Label, b.Note = visibleText(clipText(b.Name, nameChars)), visibleText(clipText(b.Label, labelChars)), visibleText(clipText(b.Note, noteChars))
	d.Boxes = append(d.Boxes, b)
}

// clipText shortens text to n characters.
func clipText(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return text
	}
	return string(runes[:n-1]) + "…"
}
