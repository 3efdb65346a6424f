package site

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// module is the path of the module with the programs.
const module = "github.com/sagamill/sagamill"

// Programs are the paths of the programs.
type Programs struct {
	Order, Trip string // the examples
	Tool        string // cmd/sagamill
}

// BuildPrograms builds the programs into dir with the failpoints, and with the files that overlay replaces; "" replaces none.
// It is called in the module of this package or one beside it.
func BuildPrograms(ctx context.Context, dir, overlay string) (Programs, error) {
	p := Programs{Order: filepath.Join(dir, "order-saga"), Trip: filepath.Join(dir, "trip-saga"), Tool: filepath.Join(dir, "sagamill")}
	// Build in the directory of the programs' own module, with its requirements.
	where, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return Programs{}, fmt.Errorf("site: find module %s: %w", module, err)
	}
	out, err := filepath.Abs(dir)
	if err != nil {
		return Programs{}, fmt.Errorf("site: %w", err)
	}
	if overlay != "" {
		if overlay, err = filepath.Abs(overlay); err != nil {
			return Programs{}, fmt.Errorf("site: %w", err)
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-tags=failpoints", "-overlay="+overlay, "-o", out+string(filepath.Separator),
		"./examples/order-saga", "./examples/trip-saga", "./cmd/sagamill")
	build.Dir = strings.TrimSpace(string(where))
	if said, err := build.CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("site: build the programs: %w: %s", err, said)
	}
	return p, nil
}
