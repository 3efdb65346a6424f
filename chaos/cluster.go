package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/chaos/internal/cluster"
	"github.com/sagamill/sagamill/internal/devservices"
)

// clusterFlag asks for the run on a cluster, which has its own flags.
const clusterFlag = "-cluster"

// ofCluster reports whether the arguments of run ask for a cluster, and returns the others.
func ofCluster(args []string) (rest []string, asked bool) {
	rest = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == clusterFlag || arg == "-"+clusterFlag })
	return rest, len(rest) < len(args)
}

// runCluster runs a load on a cluster of RabbitMQ under faults and prints the cost of each fault.
func runCluster(ctx context.Context, args []string, stdout, stderr io.Writer) (code int, err error) {
	opts, err := cluster.ParseOptions(args, stderr)
	if err != nil {
		return exitFailed, err
	}
	dir := plan{dir: opts.Dir}
	if err := dir.directory(); err != nil {
		return exitFailed, err
	}
	opts.Dir = dir.dir
	remove, err := devservices.FetchPostgres(ctx)
	if err != nil {
		return exitFailed, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	work, err := os.MkdirTemp(scratchDirectory(opts.Orders), "chaos-work-")
	if err != nil {
		return exitFailed, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := os.Chmod(work, 0o755); err != nil { // the servers have accounts of their own
		return exitFailed, err
	}
	fmt.Fprintf(stdout, "chaos: seed %d, logs in %s\n", opts.Seed, opts.Dir)
	report, err := cluster.RunCluster(ctx, opts, work, stdout)
	if err != nil {
		if report != nil {
			_ = report.WriteText(stdout) // the measurements before the error
		}
		return exitFailed, fmt.Errorf("seed %d, %s: %w", opts.Seed, opts.Dir, err)
	}
	report.Versions = slices.Concat([]string{"revision " + revision()}, versions(), report.Versions, loadAverage())
	return judgeCluster(opts, report, stdout)
}

// judgeCluster prints and writes the report. It shows the goals of a brief run but does not judge them: times
// on a shared machine say nothing about the product.
func judgeCluster(opts *cluster.Options, report *cluster.Report, stdout io.Writer) (int, error) {
	if err := report.WriteText(stdout); err != nil {
		return exitFailed, err
	}
	if opts.Table != "" {
		if err := writeTable(opts.Table, report); err != nil {
			return exitFailed, err
		}
	}
	switch {
	case !report.InvariantsHold():
		return exitRed, nil
	case !opts.Brief && !report.MeetsTargets():
		return exitVoid, nil
	default:
		return exitGreen, nil
	}
}

// loadAverage returns the machine's load at the end: all times of the table depend on it.
func loadAverage() []string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	return []string{"load average " + strings.Join(strings.Fields(string(text))[:3], " ")}
}

func writeTable(path string, report *cluster.Report) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(report.WriteText(file), file.Close())
}
