// Package cli has the flags and the printing that all families of commands share.
package cli

import (
	"context"
	"strings"
)

// A Command is one command of sagamill. Each family has a package, whose function Commands
// returns its commands.
type Command struct {
	Words string
	About string
	Run   func(ctx context.Context, c *Call) error

	NoDatabase bool // it needs no database
}

// isWithoutDatabase reports whether the command needs no database.
func (c Command) isWithoutDatabase() bool {
	return c.NoDatabase || c.Words == "version" || strings.HasPrefix(c.Words, "broker ")
}
