// Command run breaks the product as the list in package mutate says, one mutant at a time. Each test that the
// mutant names must fail:
//
//	run [-only G3] [-list] [-overlay dir] [-v] [-jobs 2] [-go go]
//
// The tests find their services in the environment. It exits with 1 if a mutant
// survives, if the list is out of date, or if a test does not pass without any change.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/internal/tools/mutate"
)

// defaultJobs is the number of mutants at work at once: the next one is compiled while the test of one runs.
const defaultJobs = 2

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run reports whether every mutant was killed.
func run(ctx context.Context, args []string, out io.Writer) (ok bool, err error) {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	only := flags.String("only", "", "a `guarantee` (G3), a claim (G3.2), the name of a bug, or \"bugs\"; default: all mutants")
	list := flags.Bool("list", false, "print the mutants and do nothing")
	overlay := flags.String("overlay", "", "write the changes of one mutant into the new `directory`, and do nothing else: go build -overlay takes them")
	verbose := flags.Bool("v", false, "print what the failing tests say")
	jobs := flags.Int("jobs", defaultJobs, "mutants at work at once")
	goCommand := flags.String("go", "go", "the go `command`")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	all, err := mutate.List()
	if err != nil {
		return false, err
	}
	if all = pick(all, *only); len(all) == 0 {
		return false, fmt.Errorf("mutate: there is no mutant of %q", *only)
	}
	root, err := moduleRoot(ctx, *goCommand)
	if err != nil {
		return false, err
	}
	cases, err := prepare(root, all)
	switch {
	case err != nil:
		return false, err
	case *list:
		printList(out, cases)
		return true, nil
	case *overlay != "" && len(all) > 1:
		return false, fmt.Errorf("mutate: -overlay takes one mutant, and -only %s picks %d", *only, len(all))
	case *overlay != "":
		name, err := writeOverlay(root, *overlay, cases[0].sources)
		fmt.Fprintln(out, name)
		return err == nil, err
	}
	b, err := newBench(root, *goCommand, max(1, *jobs))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	return report(out, *verbose, cases, b.judgeAll(ctx, cases)), ctx.Err()
}

// allBugs picks the mutants that are bugs.
const allBugs = "bugs"

// pick returns the mutants of a guarantee, of a claim or of a bug.
func pick(all []mutate.Mutant, only string) []mutate.Mutant {
	var some []mutate.Mutant
	for _, m := range all {
		if only == "" || m.Guarantee() == only || m.Name() == only || only == allBugs && m.Bug != "" {
			some = append(some, m)
		}
	}
	return some
}

func moduleRoot(ctx context.Context, goCommand string) (string, error) {
	out, err := exec.CommandContext(ctx, goCommand, "env", "GOMOD").Output()
	file := strings.TrimSpace(string(out))
	if err != nil || filepath.Base(file) != "go.mod" {
		return "", fmt.Errorf("mutate: there is no module here: %q, %w", file, err)
	}
	return filepath.Dir(file), nil
}

// A trial is a mutant whose changes have been made in memory, and one of its traps.
type trial struct {
	mutate.Mutant
	trap    mutate.Trap
	sources map[string]string // of the files that it changes, with the changes
	line    int               // the first that changes
	last    bool              // of the mutant's trials
}

// prepare makes the changes of all mutants, so that it reports at once all places where the list is out of
// date. A mutant has a trial for each of its traps.
func prepare(root string, all []mutate.Mutant) (trials []trial, err error) {
	read := func(name string) (string, error) {
		src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		return string(src), err
	}
	for _, m := range all {
		sources, line, applyErr := m.Apply(read)
		err = errors.Join(err, applyErr)
		for i, trap := range m.Traps {
			trials = append(trials, trial{m, trap, sources, line, i == len(m.Traps)-1})
		}
	}
	return trials, err
}

func (c *trial) String() string {
	return fmt.Sprintf("%-6s %s:%d %q", c.Name(), c.Changes[0].File, c.line, c.Why)
}

func printList(out io.Writer, trials []trial) {
	mutants := 0
	for i := range trials {
		fmt.Fprintf(out, "%s must fail %s\n", &trials[i], trials[i].trap.Test)
		if trials[i].last {
			mutants++
		}
	}
	fmt.Fprintf(out, "%d mutants\n", mutants)
}

// report prints the verdicts as they come, and reports whether each trap of every mutant killed it.
func report(out io.Writer, verbose bool, trials []trial, verdicts <-chan verdict) bool {
	began, count := time.Now(), map[fate]int{}
	guarantees, mutants, worst := map[string]bool{}, 0, killed
	for v := range verdicts {
		c := &trials[v.index]
		switch v.fate {
		case killed:
			fmt.Fprintf(out, "%s killed by %s in %.1fs\n", c, c.trap.Test, v.took.Seconds())
		case survived:
			fmt.Fprintf(out, "%s SURVIVED %s%s\n", c, c.trap.Test, v.why)
		default:
			fmt.Fprintf(out, "%s ERROR: %s\n", c, v.why)
		}
		if verbose {
			fmt.Fprint(out, excerpt(v.output))
		}
		if worst == killed || v.fate == survived {
			worst = v.fate
		}
		if c.last {
			count[worst]++
			mutants, worst = mutants+1, killed
		}
		if g := c.Guarantee(); g != "" {
			guarantees[g] = true
		}
	}
	fmt.Fprintf(out, "%d mutants of %d guarantees: %d killed, %d survived, %d errors, in %s\n",
		mutants, len(guarantees), count[killed], count[survived], count[broken], time.Since(began).Round(time.Second))
	return count[killed] == mutants
}
