package devservices

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// tarball writes an archive with the given files, by name.
func tarball(t *testing.T, names ...string) string {
	t.Helper()
	var content bytes.Buffer
	gz := gzip.NewWriter(&content)
	tw := tar.NewWriter(gz)
	for _, name := range names {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o700, Size: int64(len(name)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.tgz")
	if err := os.WriteFile(path, content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unpackTarball(tarball(t, "package/bin/postgres"), dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "package/bin/postgres")
	if !executable(path) {
		t.Errorf("%s is not executable", path)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o044 != 0o044 {
		t.Errorf("%s has mode %v (%v), want it readable for the server's account", path, info.Mode(), err)
	}
}

func TestUnpackOutside(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "inner")
	if err := unpackTarball(tarball(t, "../outside"), dir); err == nil {
		t.Error("an entry that leads out of the archive was unpacked")
	}
	if fileExists(filepath.Join(dir, "../outside")) {
		t.Error("a file was written outside")
	}
}

func TestLinkLibraries(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unpackTarball(tarball(t, "native/lib/libpq.so.5.18"), dir); err != nil {
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
