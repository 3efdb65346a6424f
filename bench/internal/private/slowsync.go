package private

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

//go:embed slowsync.c
var shimSource []byte

const compileTimeout = 30 * time.Second

// A shim is slowsync.c as a shared library.
type shim struct{ dir, library string }

// buildShim compiles the shim. Its directory is open to all users, because the server has another account.
func buildShim(ctx context.Context) (*shim, error) {
	if runtime.GOOS != "linux" {
		return nil, errors.New("syncs can be slowed down on Linux only")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil, errors.New("no C compiler")
	}
	dir, err := os.MkdirTemp("", "sagamill-slowsync-")
	if err != nil {
		return nil, err
	}
	s := &shim{dir: dir, library: filepath.Join(dir, "slowsync.so")}
	source := filepath.Join(dir, "slowsync.c")
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(source, shimSource, 0o644))
	if err == nil {
		err = compileShim(ctx, cc, source, s.library)
	}
	if err != nil {
		return nil, errors.Join(err, s.removeShim())
	}
	return s, nil
}

func compileShim(ctx context.Context, cc, source, library string) error {
	ctx, cancel := context.WithTimeout(ctx, compileTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, cc, "-O2", "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cc: %w: %s", err, bytes.TrimSpace(out))
	}
	return os.Chmod(library, 0o755)
}

func (s *shim) removeShim() error { return os.RemoveAll(s.dir) }
