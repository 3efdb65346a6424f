package cluster

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// A Report is the result of a run.
type Report struct {
	Options  Options
	Versions []string // of the sources, the machine and the servers
	Took     time.Duration
	Outcomes []*Outcome
}

// formatSeconds returns a time in seconds.
func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }

// String is a line of progress.
func (row *Row) String() string {
	return fmt.Sprintf("%s/%s: %s s, stall %s s, recovery %s s, blue %.0f %% and %s s; %s",
		row.Stage, row.Fault, formatSeconds(row.Duration), formatSeconds(row.Stall), row.recovery(), row.BluePercent, formatSeconds(row.BlueDelay), row.Note)
}

// recovery returns the recovery of a row as text; it marks one that did not come.
func (row *Row) recovery() string {
	if row.Stuck {
		return ">" + formatSeconds(row.Recovery)
	}
	return formatSeconds(row.Recovery)
}

// String is a line of progress.
func (o *Outcome) String() string {
	return fmt.Sprintf("%s: %d orders at %.0f/s, %d completed, %d lost, %d doubled, %d disordered, %d dead, %d left",
		o.Stage, o.Written, o.Rate, o.Completed, o.Lost, o.Doubled, o.Disordered, o.Dead, len(o.Left))
}

// columns are those of the table of faults.
const columns = "stage\tfault\tduration s\tstall s\trecovery s\tblue %\tblue delay s\theld back\tdeferred\tdead\tredelivered\torders\tnote\n"

// legend says what the columns mean.
const legend = `
A stage is the cluster's partition handling and the kind of its queues. ordered: a single active consumer, and ordering keys.
duration: from the strike to the end of the fault, with a node's start and an operator's part in it. stall: the longest time without a completed order.
recovery: from the end until outbox, open orders and rate are back to normal. blue %: messages of topic blue that were handled a second, of those before the fault.
blue delay: the longest from the write of a blue message to its effect. held back: the most messages that the relay kept aside. deferred: how often it did.
A classic queue lives on one node. While that is down, nothing is delivered from it, and its messages reach no queue: each is refused, spends attempts, and waits
longer after each. So the recovery from kill-host takes longer than the node was away, and messages become dead letters when all attempts are spent.
`

// WriteText writes the report.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	r.writeHead(&b)
	table := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprint(table, columns)
	for _, o := range r.Outcomes {
		for i := range o.Rows {
			o.Rows[i].writeRow(table)
		}
	}
	_ = table.Flush() // a strings.Builder returns no error
	b.WriteString(legend + "\n")
	stages := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprint(stages, "stage\torders\tper s\tcompleted\tsagas\tlost\tdoubled\tdisordered\tdead\tredelivered\tleft\n")
	for _, o := range r.Outcomes {
		fmt.Fprintf(stages, "%s\t%d\t%.0f\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", o.Stage, o.Written, o.Rate, o.Completed, o.Sagas,
			o.Lost, o.Doubled, o.Disordered, o.Dead, o.Redelivers, strings.Join(append(o.Left, o.Stuck), "; "))
	}
	_ = stages.Flush()
	r.examples(&b)
	b.WriteString("\n")
	targets := r.AllTargets()
	for i := range targets {
		fmt.Fprintln(&b, &targets[i])
	}
	_, err := io.WriteString(w, trimLines(b.String()))
	return err
}

func (r *Report) writeHead(w io.Writer) {
	o := &r.Options
	fmt.Fprintf(w, "make chaos CHAOS=-cluster: seed %d, %d orders a second, red and blue %d each, %d ordering keys, %s\n%s\n\n",
		o.Seed, o.Rate, o.Colours, o.Keys, r.Took.Round(time.Second), strings.Join(r.Versions, ", "))
}

func (row *Row) writeRow(w io.Writer) {
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.0f\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", row.Stage, row.Fault, formatSeconds(row.Duration), formatSeconds(row.Stall),
		row.recovery(), row.BluePercent, formatSeconds(row.BlueDelay), row.Held, row.Deferred, row.Dead, row.Redelivered, row.Done, row.Note)
}

// examples describes violations.
func (r *Report) examples(w io.Writer) {
	for _, o := range r.Outcomes {
		for _, example := range o.Examples {
			fmt.Fprintf(w, "violated: %s: %s\n", o.Stage, example)
		}
	}
}

// trimLines removes the spaces at the ends of lines.
func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
