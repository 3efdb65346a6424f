package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// traceBug prints the counterexample of a bug, statement by statement, and the final values of the variables.
func (p *prover) traceBug(ctx context.Context, name string) error {
	i := slices.IndexFunc(bugs, func(b bug) bool { return b.String() == name })
	if i < 0 {
		return fmt.Errorf("there is no bug %q; there are:\n  %s", name, strings.Trim(strings.ReplaceAll(fmt.Sprint(bugs), " ", "\n  "), "[]"))
	}
	s := searchOf(bugs[i])
	return p.withinDirectory(ctx, s, func(dir, output string) error {
		a, err := readAnswer(output)
		if err == nil {
			err = a.checkRefutes(bugs[i].breaks)
		}
		if err != nil {
			return err
		}
		steps, err := executeProgram(ctx, dir, "spin", append(s.preprocess(), "-t", "-p", s.model.file)...)
		if err != nil {
			return err
		}
		fmt.Fprint(p.out, tellStory(steps))
		return nil
	})
}

var (
	statement = regexp.MustCompile(`^\s*(\d+):\s+proc\s+(\d+) \((\w+):\d+\) (\S+:\d+) \(state \d+\)\s+\[(.*)\]$`)
	variable  = regexp.MustCompile(`^\t\t(.* = .*)$`)
	silent    = regexp.MustCompile(`^(\.\(goto\)|else|\(1\)|goto .*|break)$`)
)

// tellStory returns the statements and variables in spin's replay, without the noise.
func tellStory(replay string) string {
	var b strings.Builder
	for line := range strings.Lines(replay) {
		line = strings.TrimRight(line, "\n")
		if m := statement.FindStringSubmatch(line); m != nil && !silent.MatchString(m[5]) {
			fmt.Fprintf(&b, "%5s  %-16s %-18s %s\n", m[1], m[3]+" "+m[2], m[4], m[5])
		}
		if m := variable.FindStringSubmatch(line); m != nil {
			fmt.Fprintf(&b, "       %s\n", m[1])
		}
	}
	return b.String()
}
