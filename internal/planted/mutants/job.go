package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/planted"
)

const (
	buildLimit = 10 * time.Minute // of one package's tests, on a busy machine
	runLimit   = 2 * time.Minute  // of the tests of one trap, or of all of a package; most take a second or two
	killDelay  = 10 * time.Second // for what a test has started to notice that the test is gone
	maxShown   = 20               // lines of what a test has said
)

// A job is to build the tests of a package with a bug, or without one, and to run
// those of some traps.
type job struct {
	bug   planted.Bug // without a name: none
	pkg   string
	traps []trap

	program string
	err     error // of the build
}

// jobs are those without a bug, and then those of each bug, with each package once.
func jobs(bugs []planted.Bug) []job {
	var all []trap
	for _, b := range bugs {
		all = append(all, trapsOf(b)...)
	}
	list := byPackage(planted.Bug{}, all)
	for _, b := range bugs {
		list = append(list, byPackage(b, trapsOf(b))...)
	}
	return list
}

func byPackage(b planted.Bug, traps []trap) (list []job) {
	at := map[string]int{}
	for _, t := range traps {
		i, known := at[t.pkg]
		if !known {
			i = len(list)
			at[t.pkg] = i
			list = append(list, job{bug: b, pkg: t.pkg})
		}
		list[i].traps = append(list[i].traps, t)
	}
	return list
}

// built builds list in its order, and hands each job on while the next is being built.
// It ends early with ctx, and with a job that cannot be built.
func built(ctx context.Context, goCommand string, list []job) iter.Seq[job] {
	return func(yield func(job) bool) {
		dir, err := os.MkdirTemp("", "mutants-")
		if err != nil {
			yield(job{err: err})
			return
		}
		defer os.RemoveAll(dir)
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan job)
		go func() { // ends with list, or with ctx
			defer close(done)
			for i, j := range list {
				j.program = filepath.Join(dir, fmt.Sprint(i, ".test"))
				j.err = j.build(ctx, goCommand)
				select {
				case done <- j:
				case <-ctx.Done():
					return
				}
			}
		}()
		defer func() {
			cancel()
			for range done { // nothing is being built any more when dir is removed
			}
		}()
		for j := range done {
			if !yield(j) || j.err != nil {
				return
			}
		}
	}
}

func (j *job) build(ctx context.Context, goCommand string) error {
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	tags := "-tags=failpoints"
	if j.bug.Name != "" {
		tags += "," + j.bug.Tag()
	}
	out, err := exec.CommandContext(ctx, goCommand, "test", "-c", "-vet=off", tags, "-o", j.program, "./"+j.pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the tests of %s with %s: %w\n%s", j.pkg, tags, err, out)
	}
	return nil
}

// run runs some of the tests and returns what they have said, and how long they took.
func (j *job) run(ctx context.Context, tests string) (said string, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, runLimit+killDelay)
	defer cancel()
	cmd := exec.CommandContext(ctx, j.program, "-test.v", "-test.run="+tests, "-test.timeout="+runLimit.String())
	cmd.Dir, cmd.WaitDelay = j.pkg, killDelay
	began := time.Now()
	out, err := cmd.CombinedOutput()
	return string(out), time.Since(began), err
}

// passes returns an error unless the tests of all traps pass.
func (j *job) passes(ctx context.Context) error {
	var tests []string
	for _, t := range j.traps {
		tests = append(tests, t.pattern())
	}
	said, _, err := j.run(ctx, strings.Join(tests, "|"))
	if err != nil {
		return fmt.Errorf("without a bug the tests of %s fail, so that they prove nothing: %w\n%s", j.pkg, err, tail(said))
	}
	for _, t := range j.traps {
		if !strings.Contains(said, "\n--- PASS: "+t.test()+" ") {
			return fmt.Errorf("there is no test %s in %s, or it was skipped\n%s", t.test(), j.pkg, tail(said))
		}
	}
	return nil
}

// springs reports whether t catches the bug, and says so.
func (j *job) springs(ctx context.Context, t trap, w io.Writer) bool {
	said, took, err := j.run(ctx, t.pattern())
	if ctx.Err() != nil {
		return false
	}
	survives := t.judge(said, err)
	if survives == "" {
		fmt.Fprintf(w, "mutant %s caught by %s %s in %.1fs\n", j.bug.Name, t.pkg, t.run, took.Seconds())
		return true
	}
	fmt.Fprintf(w, "mutant %s SURVIVED %s %s: %s\n%s", j.bug.Name, t.pkg, t.run, survives, tail(said))
	return false
}

// judge returns how a bug has survived the trap, or "". Who dies, or is stopped
// after its time, has not noticed anything.
func (t *trap) judge(said string, err error) string {
	switch {
	case err == nil:
		return "the test passes"
	case !strings.Contains("\n"+said, "\n--- FAIL: "+t.test()+" "):
		return fmt.Sprintf("it ends by %v, and no test has failed", err)
	case !strings.Contains(said, t.says):
		return fmt.Sprintf("the test fails, but not with %q", t.says)
	}
	return ""
}

// tail returns the last lines of what a test has said.
func tail(said string) string {
	lines := strings.SplitAfter(said, "\n")
	return strings.Join(lines[max(0, len(lines)-maxShown):], "")
}
