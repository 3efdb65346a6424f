package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/internal/tools/mutate"
)

// grace is the time that a test has, after its limit, to print why it hangs.
const grace = 10 * time.Second

// compileLimit bounds compiling one package's tests, with all that it imports.
const compileLimit = 10 * time.Minute

// A bench compiles and tests mutants.
type bench struct {
	root, goCommand string
	dir             string // of its own
	jobs            int
}

func newBench(root, goCommand string, jobs int) (*bench, error) {
	dir, err := os.MkdirTemp("", "sagamill-mutate-")
	if err != nil {
		return nil, fmt.Errorf("mutate: %w", err)
	}
	return &bench{root: root, goCommand: goCommand, dir: dir, jobs: jobs}, nil
}

func (b *bench) close() error { return os.RemoveAll(b.dir) }

// judgeAll returns the verdicts on cases in their order, as soon as they are known.
func (b *bench) judgeAll(ctx context.Context, cases []trial) <-chan verdict {
	unchanged := b.tryUnchanged(ctx, cases)
	return inOrder(b.jobs, len(cases), func(i int) verdict {
		v := verdict{index: i, fate: broken}
		switch why := unchanged[cases[i].trap.Test]; {
		case ctx.Err() != nil:
			v.why = "interrupted"
		case why != "":
			v.why = "without the change, " + why
		default:
			v = b.judge(ctx, i, &cases[i])
		}
		return v
	})
}

// inOrder calls f for each number up to n, some at once, and returns the results in order.
func inOrder[T any](jobs, n int, f func(i int) T) <-chan T {
	slots, results := make(chan struct{}, jobs), make([]chan T, n)
	for i := range results {
		results[i] = make(chan T, 1)
	}
	go func() {
		for i := range results {
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				results[i] <- f(i)
			}()
		}
	}()
	out := make(chan T)
	go func() {
		defer close(out)
		for _, result := range results {
			out <- <-result
		}
	}()
	return out
}

// tryUnchanged runs each test of cases without any change, and returns an error for each test that does not
// pass.
func (b *bench) tryUnchanged(ctx context.Context, cases []trial) map[mutate.Test]string {
	var (
		packages []string
		tests    = map[string][]mutate.Test{}
		wrong    = map[mutate.Test]string{}
	)
	for i := range cases {
		t := cases[i].trap.Test
		if _, seen := wrong[t]; seen {
			continue
		}
		if len(tests[t.Package]) == 0 {
			packages = append(packages, t.Package)
		}
		tests[t.Package] = append(tests[t.Package], t)
		wrong[t] = ""
	}
	type outcome struct {
		test mutate.Test
		why  string
	}
	for outcomes := range inOrder(b.jobs, len(packages), func(i int) (all []outcome) {
		binary := filepath.Join(b.dir, "unchanged-"+strconv.Itoa(i))
		err := b.compile(ctx, binary, packages[i], "")
		for _, t := range tests[packages[i]] {
			o := outcome{test: t}
			if err != nil {
				o.why = err.Error()
			} else if r := b.test(ctx, binary, t, 2*mutate.DefaultLimit); r.end != passed {
				o.why = fmt.Sprintf("%s %s:\n%s", t, r.end, r.output)
			}
			all = append(all, o)
		}
		return all
	}) {
		for _, o := range outcomes {
			wrong[o.test] = o.why
		}
	}
	return wrong
}

// judge compiles c's test with the change and runs it.
func (b *bench) judge(ctx context.Context, i int, c *trial) verdict {
	v := verdict{index: i, fate: broken}
	dir := filepath.Join(b.dir, strconv.Itoa(i))
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(b.root, dir, c.sources)
	if err != nil {
		v.why = err.Error()
		return v
	}
	binary := filepath.Join(dir, "test")
	if err := b.compile(ctx, binary, c.trap.Package, overlay); err != nil {
		v.why = "the list is wrong: " + err.Error()
		return v
	}
	began := time.Now()
	r := b.test(ctx, binary, c.trap.Test, c.Limit)
	v.took, v.output = time.Since(began), r.output
	v.fate, v.why = r.judge(c.trap.Says, c.Hangs)
	return v
}

// writeOverlay writes sources into the new directory dir. It returns the name of the overlay file there,
// which makes the go command use them in place of the files in the tree.
func writeOverlay(root, dir string, sources map[string]string) (name string, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("mutate: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", fmt.Errorf("mutate: %w", err)
	}
	replace := map[string]string{}
	for file, source := range sources {
		changed := filepath.Join(dir, strconv.Itoa(len(replace))+".go")
		err = errors.Join(err, os.WriteFile(changed, []byte(source), 0o600))
		replace[filepath.Join(root, filepath.FromSlash(file))] = changed
	}
	name = filepath.Join(dir, "overlay.json")
	content, jsonErr := json.Marshal(map[string]any{"Replace": replace})
	return name, errors.Join(err, jsonErr, os.WriteFile(name, content, 0o600))
}

// compile makes binary of the tests of a package. overlay may be "".
func (b *bench) compile(ctx context.Context, binary, pkg, overlay string) error {
	ctx, cancel := context.WithTimeout(ctx, compileLimit)
	defer cancel()
	args := []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-tags=failpoints", "-o", binary}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, b.goCommand, append(args, "./"+pkg)...)
	cmd.Dir = b.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s does not compile: %w\n%s", pkg, err, out)
	}
	return nil
}

// test runs t, which is in binary.
func (b *bench) test(ctx context.Context, binary string, t mutate.Test, limit time.Duration) result {
	ctx, cancel := context.WithTimeout(ctx, limit+grace)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.v", "-test.run="+t.Run(), "-test.timeout="+limit.String())
	cmd.Dir = filepath.Join(b.root, filepath.FromSlash(t.Package))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // and the processes that it has started
	cmd.WaitDelay = grace
	err := cmd.Run()
	return result{endOf(t.Name, out.String(), err == nil, ctx.Err() != nil), out.String()}
}
