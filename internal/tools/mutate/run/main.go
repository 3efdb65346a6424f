// Command run breaks the product at each place of the list in package mutate, one at
// a time, and has the test fail that is named there:
//
//	run [-only G3] [-list] [-v] [-jobs 2] [-go go]
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

// defaultJobs is how many mutants are at work at once: while the test of one runs, the
// next is compiled.
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
	only := flags.String("only", "", "the `guarantee` (G3) or claim (G3.2) whose mutants are wanted; default: all")
	list := flags.Bool("list", false, "print the mutants and do nothing")
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
	if err != nil {
		return false, err
	}
	if *list {
		printList(out, cases)
		return true, nil
	}
	b, err := newBench(root, *goCommand, max(1, *jobs))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	return report(out, *verbose, cases, b.judgeAll(ctx, cases)), ctx.Err()
}

// pick returns the mutants of a guarantee or of a claim.
func pick(all []mutate.Mutant, only string) []mutate.Mutant {
	var some []mutate.Mutant
	for _, m := range all {
		if only == "" || m.Guarantee() == only || m.Claim == only {
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

// A trial is a mutant whose change has been made in memory.
type trial struct {
	mutate.Mutant
	source string // of its file, with the change
	line   int
}

// prepare makes all changes, so that a list that is out of date is told at once and
// as a whole.
func prepare(root string, all []mutate.Mutant) (cases []trial, err error) {
	for _, m := range all {
		src, readErr := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.File)))
		if readErr != nil {
			err = errors.Join(err, fmt.Errorf("mutate: the list is out of date: %w", readErr))
			continue
		}
		changed, line, applyErr := m.Apply(string(src))
		err = errors.Join(err, applyErr)
		cases = append(cases, trial{m, changed, line})
	}
	return cases, err
}

func (c *trial) String() string {
	return fmt.Sprintf("%-6s %s:%d %q", c.Claim, c.File, c.line, c.Why)
}

func printList(out io.Writer, cases []trial) {
	for i := range cases {
		fmt.Fprintf(out, "%s must fail %s\n", &cases[i], cases[i].Test)
	}
	fmt.Fprintf(out, "%d mutants\n", len(cases))
}

// report prints verdicts as they come, and reports whether every mutant was killed.
func report(out io.Writer, verbose bool, cases []trial, verdicts <-chan verdict) bool {
	began, count := time.Now(), map[fate]int{}
	guarantees := map[string]bool{}
	for v := range verdicts {
		c := &cases[v.index]
		guarantees[c.Guarantee()] = true
		count[v.fate]++
		switch v.fate {
		case killed:
			fmt.Fprintf(out, "%s killed by %s in %.1fs\n", c, c.Test, v.took.Seconds())
		case survived:
			fmt.Fprintf(out, "%s SURVIVED %s\n", c, c.Test)
		default:
			fmt.Fprintf(out, "%s ERROR: %s\n", c, v.why)
		}
		if verbose {
			fmt.Fprint(out, excerpt(v.output))
		}
	}
	fmt.Fprintf(out, "%d mutants of %d guarantees: %d killed, %d survived, %d errors, in %s\n",
		len(cases), len(guarantees), count[killed], count[survived], count[broken], time.Since(began).Round(time.Second))
	return count[killed] == len(cases)
}
