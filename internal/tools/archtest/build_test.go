package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The first build says what it does before it has compiled anything, and how far it is. A build of a few packages is
// silent. Errors of the compiler and the exit code come through.
func TestBuildShowsItsProgress(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ build, want, code string }{
		{`echo "go: downloading example.com/a v1"; seq 120`,
			"building bin/x from 120 packages: a minute or two the first time, seconds later\n  go: downloading example.com/a v1\n  50 of 120 packages\n  100 of 120 packages\n", "0"},
		{"seq 12", "building bin/x from 120 packages: a minute or two the first time, seconds later\n", "0"},
		{"seq 9", "", "0"},
		{`echo "./a.go:1:1: undefined: x"; exit 3`, "./a.go:1:1: undefined: x\n", "3"},
	} {
		dir := t.TempDir()
		script := `case "$3" in list) seq 120;; build) test "$*" = "-C sub build -v -o ` + dir + `/bin/x ./p" || exit 9; ` + tt.build + ";; esac"
		compiler := filepath.Join(dir, "go")
		if err := os.WriteFile(compiler, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		sh, err := filepath.Abs(filepath.Join(root, "internal/tools/build.sh"))
		if err != nil {
			t.Fatal(err)
		}
		// A script is run by its name only if no process has it open for writing, so sh reads both.
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `go() { sh `+compiler+` "$@"; }; set -- bin/x ./p sub; . `+sh+`; `)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GO=go")
		out, err := cmd.CombinedOutput()
		if got := string(out); got != tt.want || (err == nil) != (tt.code == "0") || err != nil && !strings.HasSuffix(err.Error(), "exit status "+tt.code) {
			t.Errorf("%s: %q, %v; want %q and exit code %s", tt.build, got, err, tt.want, tt.code)
		}
	}
}
