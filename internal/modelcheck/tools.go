package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"

	"github.com/sagamill/sagamill/internal/devservices"
)

// tools are the programs that a search needs, with the packages of Debian that have them.
var tools = []struct {
	program  string
	packages []string
}{
	{"spin", []string{"spin"}},
	{"gcc", []string{"gcc", "libc6-dev"}}, // it compiles the verifier, and is spin's preprocessor
}

// findTools makes sure that all tools are there. Those that are missing are installed where that is possible; else an
// error says what to install.
func findTools(ctx context.Context, log io.Writer) error {
	for _, t := range tools {
		if _, err := exec.LookPath(t.program); err == nil {
			continue
		}
		err := devservices.Install(ctx, log, t.packages...)
		if err == nil {
			_, err = exec.LookPath(t.program)
		}
		if err != nil {
			return fmt.Errorf("no %s: install it (on Debian and Ubuntu: apt-get install %s), version 6.5.2 of spin or later: %w", t.program, t.packages[0], err)
		}
	}
	return nil
}
