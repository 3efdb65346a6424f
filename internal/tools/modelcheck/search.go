package main

import (
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// searchTimeout bounds each program of a search. On a quiet machine none takes more than some seconds.
	searchTimeout = 30 * time.Minute

	// together is how many searches run at once.
	together = 2

	// maxDepth is how many steps a run may have; a longer one fails the search.
	maxDepth = 1_000_000
)

// A search is one run of a verifier.
type search struct {
	model   model
	defines []string // besides those of the model
	compile []string
	run     []string
}

// The kinds of searches: every state, for a broken property and for a process that is stuck in the middle;
// every run, for one that never ends; or the shortest run to a broken property.
var (
	states   = search{compile: []string{"-O1", "-DSAFETY", "-DNOCLAIM"}, run: []string{"-m" + strconv.Itoa(maxDepth), "-b"}}
	cycles   = search{compile: []string{"-O1", "-DNOFAIR"}, run: []string{"-a", "-m" + strconv.Itoa(maxDepth), "-b"}}
	shortest = search{compile: []string{"-O0", "-DSAFETY", "-DNOCLAIM", "-DBFS"}, run: []string{"-E"}}
)

func (s search) searchOf(m model, defines ...string) search {
	s.model, s.defines = m, defines
	return s
}

// searchOf returns the search for b's counterexample.
func searchOf(b bug) search {
	m := models[slices.IndexFunc(models, func(m model) bool { return m.name == b.model })]
	if b.breaks == ends {
		return cycles.searchOf(m, b.defineFlag(), "JUDGE=true")
	}
	return shortest.searchOf(m, b.defineFlag(), "JUDGE="+b.breaks)
}

// verdicts searches everything, some at once, and yields a line for each model and each bug in the order of the lists;
// with an error the line is just its name.
func (p *prover) verdicts(ctx context.Context) iter.Seq2[string, error] {
	type verdict struct {
		line string
		err  error
	}
	var jobs []func() verdict
	for _, m := range models {
		jobs = append(jobs, func() verdict {
			n, err := p.checkModel(ctx, m)
			return verdict{fmt.Sprintf("model %s: %d states, clean", m.name, n), err}
		})
	}
	for _, b := range bugs {
		jobs = append(jobs, func() verdict {
			n, err := p.checkBug(ctx, b)
			return verdict{fmt.Sprintf("bug %s: refuted in %d steps (%s)", b, n, b.breaks), err}
		})
	}
	return func(yield func(string, error) bool) {
		slots := make(chan struct{}, together)
		results := make([]chan verdict, len(jobs))
		for i := range jobs {
			results[i] = make(chan verdict, 1)
		}
		go func() {
			for i, job := range jobs {
				slots <- struct{}{}
				go func() {
					results[i] <- job()
					<-slots
				}()
			}
		}()
		for _, result := range results {
			v := <-result
			if v.err != nil {
				v.line, _, _ = strings.Cut(v.line, ":")
			}
			if !yield(v.line, v.err) {
				return
			}
		}
	}
}

// checkModel searches m and returns the number of its states. It returns an error unless the search was
// exhaustive and m is clean.
func (p *prover) checkModel(ctx context.Context, m model) (n int, err error) {
	var defines []string
	if p.faults > 0 {
		defines = append(defines, "FAULTS="+strconv.Itoa(p.faults))
	}
	for _, s := range []search{states, cycles} {
		a, err := p.runSearch(ctx, s.searchOf(m, defines...))
		if err == nil {
			err = a.checkClean()
		}
		if err != nil {
			return 0, err
		}
		n = max(n, a.states)
	}
	return n, nil
}

// checkBug returns the number of steps of b's counterexample, and an error if there is none.
func (p *prover) checkBug(ctx context.Context, b bug) (int, error) {
	a, err := p.runSearch(ctx, searchOf(b))
	if err == nil {
		err = a.checkRefutes(b.breaks)
	}
	return a.depth, err
}

// runSearch builds a verifier in a new folder, and runs it.
func (p *prover) runSearch(ctx context.Context, s search) (a answer, err error) {
	err = p.withinDirectory(ctx, s, func(_, output string) error {
		a, err = readAnswer(output)
		return err
	})
	return a, err
}

// withinDirectory runs s in a new folder, and then do with the folder and the output of the verifier. It
// removes the folder afterwards.
func (p *prover) withinDirectory(ctx context.Context, s search, do func(dir, output string) error) error {
	dir, err := os.MkdirTemp("", "modelcheck-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, os.DirFS(p.dir)); err != nil {
		return err
	}
	if _, err := executeProgram(ctx, dir, "spin", append(s.preprocess(), "-a", s.model.file)...); err != nil {
		return err
	}
	compile := append([]string{"-w", "-DMEMLIM=" + strconv.Itoa(p.memory), "-o", "pan", "pan.c"}, s.compile...)
	if _, err := executeProgram(ctx, dir, "gcc", compile...); err != nil {
		return err
	}
	output, err := executeProgram(ctx, dir, filepath.Join(dir, "pan"), append([]string{"-w20"}, s.run...)...)
	if err != nil {
		return err
	}
	return do(dir, output)
}

// preprocess returns the arguments of spin that set the defines of s.
func (s search) preprocess() (args []string) {
	for _, d := range slices.Concat(s.model.defines, s.defines) {
		args = append(args, "-D"+d)
	}
	return args
}

// executeProgram runs a program and returns what it has printed.
func executeProgram(ctx context.Context, dir, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	output, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(program), err, output)
	}
	return string(output), nil
}
