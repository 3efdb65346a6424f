// Command modelcheck has spin search all states of the models in the folder model. It also proves that the
// searches find errors: each bug that is planted in a model must break its listed property.
//
//	modelcheck [-dir model] [-faults N] [-memory MB] [-trace BUG]
//
// It prints a line for each model and each bug. It exits with 1 if a model is not clean, if a search was not
// exhaustive, or if a bug was not found. It needs spin and a C compiler, and installs them with apt-get if it
// may.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	dir := flag.String("dir", "model", "the `folder` of the models")
	faults := flag.Int("faults", 0, "how many faults a run of a model may have, instead of its own `number`; more than that takes its time")
	memory := flag.Int("memory", 2500, "what one search may use, in `MB`; two run at once")
	trace := flag.String("trace", "", "print the counterexample of one `bug`, and search nothing else")
	flag.Parse()
	if flag.NArg() > 0 || *faults < 0 || *memory < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := prover{dir: *dir, faults: *faults, memory: *memory, out: os.Stdout}
	if err := p.proveAll(ctx, *trace); err != nil {
		fmt.Fprintln(os.Stderr, "modelcheck:", err)
		stop()
		os.Exit(1)
	}
}

// A prover searches the models in dir.
type prover struct {
	dir    string
	faults int // 0: the model's own number
	memory int // MB
	out    io.Writer
}

// proveAll searches all models and bugs, or prints the counterexample of one bug.
func (p *prover) proveAll(ctx context.Context, trace string) error {
	if err := lintModels(p.dir); err != nil {
		return err
	}
	if err := findTools(ctx, os.Stderr); err != nil {
		return err
	}
	if trace != "" {
		return p.traceBug(ctx, trace)
	}
	begun := time.Now()
	failed := 0
	for line, err := range p.verdicts(ctx) {
		if err != nil {
			failed++
			line = fmt.Sprintf("%s: FAILED: %v", line, err)
		}
		fmt.Fprintln(p.out, line)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d models and bugs are not as they should be", failed, len(models)+len(bugs))
	}
	fmt.Fprintf(p.out, "%d models clean, %d bugs refuted, in %.0f s\n", len(models), len(bugs), time.Since(begun).Seconds())
	return nil
}
