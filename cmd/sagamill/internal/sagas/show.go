package sagas

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

func sagaShow(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.EverySchema)
	state := c.Flags.Bool("state", false, "print the state of the saga too")
	asJSON := c.Flags.Bool("json", false, "print JSON")
	at, err := c.ParseAddress(true, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	targets, err := c.OpenTargets(ctx, cli.EverySchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	of, n, found, err := targets.FindInstance(ctx, at)
	if err != nil {
		return err
	}
	t, err := n.Get(ctx, found)
	if err != nil {
		return err
	}
	if *asJSON {
		return cli.PrintJSON(c.Stdout, newTimeline(of.Name, &t, *state))
	}
	if !*state {
		t.State = nil
	}
	return showTimeline(c.Stdout, of, &t)
}

// showTimeline prints the instance, its steps, its next actions, and the journal of decisions.
func showTimeline(w io.Writer, of *cli.Target, t *operator.Timeline) error {
	if err := cli.PrintFields(w, timelineFields(of, t)); err != nil {
		return err
	}
	fmt.Fprintln(w)
	rows := make([][]string, len(t.Steps))
	for i := range t.Steps {
		rows[i] = stepRow(t, &t.Steps[i])
	}
	if err := cli.PrintTable(w, []string{"STEP", "STATE", "ATTEMPT", "BEGAN", "ENDED", "UNDONE", "DUE", "NOTE"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	writeAhead(w, t)
	for _, e := range t.Journal {
		step := ""
		if e.Step != "" {
			step = " " + cli.FormatCell(e.Step)
		}
		fmt.Fprintf(w, "%s  %s%s by %s: %s\n", cli.FormatTime(e.At), e.Verb, step, cli.FormatCell(e.By), cli.EscapeText(e.Why))
	}
	return nil
}

func timelineFields(of *cli.Target, t *operator.Timeline) [][2]string {
	fields := [][2]string{
		{"schema", of.Name},
		{"saga", fmt.Sprintf("%s, version %d", cli.FormatCell(t.Saga), t.Version)},
		{"instance", cli.FormatAddress(t.Address)},
		{"id", t.ID},
		{"status", t.StatusText()},
		{"started", cli.FormatTime(t.StartedAt)},
		{"moved", cli.FormatTime(t.UpdatedAt)},
	}
	add := func(ok bool, name, value string) {
		if ok {
			fields = append(fields, [2]string{name, value})
		}
	}
	add(t.Parent != "", "within", "saga "+cli.FormatCell(t.Parent)+", "+t.Root)
	add(t.Reason != "", "reason", cli.EscapeText(t.Reason))
	add(t.Fault != "", "fault", "an orchestrator could not go on with it; "+strconv.Itoa(t.Tries)+" tries")
	add(t.PlanProblem != "", "plan", cli.EscapeText(t.PlanProblem))
	add(!t.Deadline.IsZero(), "deadline", cli.FormatTime(t.Deadline))
	add(!t.DueAt.IsZero(), "due", cli.FormatTime(t.DueAt))
	add(!t.EndedAt.IsZero(), "ended", cli.FormatTime(t.EndedAt))
	add(t.State != nil, "state", cli.EscapeText(string(t.State)))
	return fields
}

// writeAhead prints the next actions of an orchestrator, and the steps that a compensation undoes.
func writeAhead(w io.Writer, t *operator.Timeline) {
	if len(t.Next) > 0 {
		fmt.Fprintf(w, "an orchestrator is to: %s\n", strings.Join(t.Next, ", "))
	}
	if t.PlanProblem != "" || !t.EndedAt.IsZero() {
		return
	}
	said := "would be undone if cancelled now"
	if t.Compensating {
		said = "is still to be undone"
	}
	if len(t.Undo) == 0 {
		fmt.Fprintf(w, "%s: nothing: %s\n", said, cli.EscapeText(t.UndoNothing))
		return
	}
	waves := make([]string, len(t.Undo))
	for i, wave := range t.Undo {
		waves[i] = strings.Join(wave, " and ")
	}
	fmt.Fprintf(w, "%s: %s\n", said, strings.Join(waves, ", then "))
}

func stepRow(t *operator.Timeline, s *operator.TimelineStep) []string {
	name := strings.Repeat("  ", s.Depth) + cli.FormatCell(s.Name)
	if s.Number == 0 {
		return []string{name + ": " + map[string]string{"all": "all at once", "seq": "in turn"}[s.Kind], "", "", "", "", "", "", ""}
	}
	attempt := "-"
	if s.Attempt > 0 {
		attempt = strconv.Itoa(s.Attempt)
	}
	since := func(at time.Time) string {
		if at.IsZero() {
			return "-"
		}
		return "+" + at.Sub(t.StartedAt).Round(time.Millisecond).String()
	}
	return []string{name, string(s.State), attempt, since(s.Began), since(s.Ended), since(s.UndoEnded), since(s.Due), stepNote(s)}
}

// stepNote returns the facts about a step that no column has.
func stepNote(s *operator.TimelineStep) string {
	var notes []string
	add := func(ok bool, note string) {
		if ok {
			notes = append(notes, note)
		}
	}
	add(s.Pivot, "pivot")
	if s.Nested != nil {
		add(true, fmt.Sprintf("saga %s, nested at %s: %s", cli.FormatCell(s.Nested.Saga), s.Nested.Path, s.Nested.Status))
	}
	add(s.Override, "a person has decided")
	add(s.NotDone, "its action did nothing, so there was nothing to undo")
	add(s.InDoubt, "what it has done is not known")
	add(s.Held, "it needs an operator at the participant")
	add(s.Resend, "its last message will be sent again")
	add(s.Reason != "", cli.FormatCell(cli.ClipText(s.Reason, 2*cli.ReasonWidth)))
	return cmp.Or(strings.Join(notes, "; "), "-")
}
