// Package report prints the verdict of a run: as text for a terminal, as JSON for programs, and as one
// self-contained HTML page.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/judge"
)

// The files that WriteFiles makes.
const (
	TextFile = "report.txt"
	JSONFile = "report.json"
	HTMLFile = "report.html"
)

// WriteFiles writes all three reports into dir and overwrites earlier ones.
func WriteFiles(dir string, v *judge.Verdict) error {
	var errs []error
	for name, write := range map[string]func(io.Writer, *judge.Verdict) error{TextFile: WriteText, JSONFile: WriteJSON, HTMLFile: WriteHTML} {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		errs = append(errs, write(file, v), file.Close())
	}
	return errors.Join(errs...)
}

// WriteJSON writes the whole verdict.
func WriteJSON(w io.Writer, v *judge.Verdict) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(v)
}

// WriteText writes a summary for a terminal: counts, a line for each invariant and each figure, and the outcome
// at the end.
func WriteText(w io.Writer, v *judge.Verdict) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "run of seed %d, %s\n%s\n", v.Run.Seed, v.Took, strings.Join(v.Run.Versions, ", "))
	if v.Run.Overlay != "" {
		fmt.Fprintf(t, "built with the overlay %s\n", v.Run.Overlay)
	}
	fmt.Fprint(t, "\nsaga\tkind\tn\tended as\n")
	for _, e := range v.Ends {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", e.Saga, e.Kind, e.N, formatCounts(e.Ends))
	}
	fmt.Fprint(t, "\nfault\tstruck\tunder load\tof what\tmet nobody\tnot done\n")
	for _, f := range v.Faults {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\n", f.Fault, f.Struck, f.Busy, f.Hits, f.Idle, f.Failed)
	}
	fmt.Fprint(t, "\nservice\tkilled\tby a failpoint\ttold to end\tby itself\n")
	for _, r := range v.Roles {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\n", r.Role, r.Kills, r.Fuses, r.Stops, r.Own)
	}
	fmt.Fprintf(t, "\n%d failpoints × actions struck, %d times\n\n", len(v.Points), totalHits(v.Points))
	for _, i := range v.Invariants {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d cases\n", verdictOf(i), i.ID, i.Says, i.Checked)
		for _, o := range i.Offenders[:min(shown, len(i.Offenders))] {
			fmt.Fprintf(t, "\t\t  %s\n", strings.TrimSpace(o.Saga+" "+o.Key+": "+o.What))
		}
		if i.Count > shown {
			fmt.Fprintf(t, "\t\t  and %d more\n", i.Count-shown)
		}
	}
	fmt.Fprintln(t)
	for _, f := range v.Figures {
		fmt.Fprintf(t, "figure\t%s\t%s\t%s\t%s\n", f.Name, formatNumber(f.Value), formatNumber(f.Goal), okOrShort(f))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\n"+legend)
	for _, m := range v.Missing {
		fmt.Fprintf(w, "missing: %s\n", m)
	}
	_, err := fmt.Fprintf(w, "\n%s: seed %d\n", v.Outcome, v.Run.Seed)
	return err
}

// legend says what the columns and the words of a report mean.
const legend = `Figures: "small" is below a goal that the run was not sized for; it is not judged by it. "short" and "over" miss one that it was sized for.
Faults: "struck" is how often one has met connections, sessions, requests, messages or rows at all, "under load" with requests under way, "of what" how many of
those it met; one that "met nobody" or was "not done" does not count as struck. A process that dies by another cause in the same moment is not killed.
Invariants: an ID that comes several times is one invariant of several things. R: the whole history, published again. L: linearizability.
Trips that must complete end compensated where a step has taken longer than their patience, which storms make common; the judge asks for proof of the delay.`

// shown is how many offenders of an invariant the text lists.
const shown = 5

func verdictOf(i *judge.Invariant) string {
	if i.Count > 0 {
		return "VIOLATED"
	}
	return "holds"
}

func okOrShort(f judge.Figure) string {
	switch {
	case f.OK:
		return "ok"
	case f.Most:
		return "over"
	case !f.Bound:
		return "small" // the run was configured below the goal
	default:
		return "short"
	}
}

func formatNumber(f float64) string {
	if f == float64(int64(f)) {
		return fmt.Sprintf("%d", int64(f))
	}
	return fmt.Sprintf("%.1f", f)
}

func formatCounts(all map[string]int) string {
	var parts []string
	for _, name := range sortedKeys(all) {
		parts = append(parts, fmt.Sprintf("%d %s", all[name], name))
	}
	return strings.Join(parts, ", ")
}

func totalHits(all []judge.PointCount) (n int) {
	for _, p := range all {
		n += p.Hits
	}
	return n
}

// formatSeconds prints a moment of the run.
func formatSeconds(at time.Duration) string { return fmt.Sprintf("%.3f s", at.Seconds()) }
