// Command mutants plants the bugs of package planted, one at a time, and runs the
// directed tests that are there for each. They must fail: a bug that survives is a
// hole in the tests.
//
//	mutants [-list] [-only NAME,…]
//
// It runs in the root of the module, with the services that the tests need. A bug is caught if the tests of each of
// its traps fail, and say what the trap says: a test that cannot reach its database
// proves nothing. Without a bug the same tests must pass, which is seen first, once for each package.
//
// It exits with 0 if every bug is caught, with 1 if one has survived or the tests fail without any, and with
// 2 if it was called in the wrong way.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/sagamill/sagamill/internal/planted"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process, and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listed := flags.Bool("list", false, "list the bugs and their traps, and run nothing")
	only := flags.String("only", "", "names of bugs, with commas between them; default: all")
	goCommand := flags.String("go", "go", "the go command")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	bugs, err := pick(*only)
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("it takes no arguments, but was given %q", flags.Args())
	}
	if err != nil {
		fmt.Fprintln(stderr, "mutants:", err)
		return 2
	}
	if *listed {
		list(stdout, bugs)
		return 0
	}
	if err := catch(ctx, *goCommand, bugs, stdout); err != nil {
		fmt.Fprintln(stderr, "mutants:", err)
		return 1
	}
	return 0
}

// pick returns the bugs that names says, all for none.
func pick(names string) ([]planted.Bug, error) {
	all := planted.Bugs()
	if names == "" {
		return all, nil
	}
	var bugs []planted.Bug
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(b planted.Bug) bool { return b.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no bug %q", name)
		}
		bugs = append(bugs, all[i])
	}
	return bugs, nil
}

func list(w io.Writer, bugs []planted.Bug) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, b := range bugs {
		fmt.Fprintf(table, "%s\t-tags=%s\n", b.Name, b.Tag())
		for _, t := range trapsOf(b) {
			fmt.Fprintf(table, "\t%s %s: %s\n", t.pkg, t.run, t.why)
		}
	}
	_ = table.Flush()
}

// errSurvived reports that not every bug was caught.
var errSurvived = errors.New("the tests do not notice a bug that was planted, and would not notice one that was not")

// catch plants bugs and says of each what has become of it.
func catch(ctx context.Context, goCommand string, bugs []planted.Bug, w io.Writer) error {
	began := time.Now()
	survivors := map[string]bool{}
	for j := range built(ctx, goCommand, jobs(bugs)) {
		switch {
		case j.err != nil:
			return j.err
		case j.bug.Name == "":
			if err := j.passes(ctx); err != nil {
				return err
			}
			continue
		}
		for _, t := range j.traps {
			if !j.springs(ctx, t, w) {
				survivors[j.bug.Name] = true
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Fprintf(w, "mutants %d/%d caught in %s\n", len(bugs)-len(survivors), len(bugs), time.Since(began).Round(time.Second))
	if len(survivors) > 0 {
		return errSurvived
	}
	return nil
}
