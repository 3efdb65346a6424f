package main

import (
	"context"
	"fmt"
	"io"

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

// findTools returns nil if all tools are installed. It installs missing tools where that is possible;
// otherwise its error says what to install.
func findTools(ctx context.Context, log io.Writer) error {
	for _, t := range tools {
		if _, err := devservices.Program(ctx, log, t.program, t.packages...); err != nil {
			return fmt.Errorf("version 6.5.2 of spin or later is needed, and gcc: %w", err)
		}
	}
	return nil
}
