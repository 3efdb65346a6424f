package cli

import (
	"context"
	"strings"
)

// A Command is what its words ask for. Each group of verbs has a file and a
// function of its own that returns its commands.
type Command struct {
	Words string
	About string
	Run   func(ctx context.Context, c *Call) error
}

// offline reports whether the command needs no database.
func (c Command) offline() bool { return c.Words == "version" || strings.HasPrefix(c.Words, "broker ") }
