package devservices

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

const npmTimeout = 3 * time.Minute

// npmPostgres starts PostgreSQL from the binaries of an npm package.
func (r *run) npmPostgres(ctx context.Context) (instance, error) {
	bin, err := r.unpackPostgres(ctx)
	if err != nil {
		return instance{}, err
	}
	return r.startPostgres(ctx, bin)
}

// unpackPostgres returns the directory of the programs in an npm package.
func (r *run) unpackPostgres(ctx context.Context) (bin string, err error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", serviceAbsent("no npm")
	}
	name, err := npmPackage(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return "", err
	}
	files, err := r.runDirectory()
	if err != nil {
		return "", err
	}
	archive, err := r.npmArchive(ctx, npm, name, cmp.Or(r.postgres.major, preferredMajor))
	if err != nil {
		return "", err
	}
	// Each run unpacks it, because the server's account may not have access to the cache.
	dir := filepath.Join(files.path, "npm")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	if _, err := (program{path: "tar", args: []string{"-xzf", archive, "-C", dir, "--no-same-owner"}}).runProgram(ctx, npmTimeout); err != nil {
		return "", err
	}
	native := filepath.Join(dir, "package", "native")
	if err := linkLibraries(filepath.Dir(native), filepath.Join(native, "pg-symlinks.json")); err != nil {
		return "", err
	}
	return filepath.Join(native, "bin"), nil
}

// npmPackage returns the name of the package for a platform.
func npmPackage(goos, goarch string) (string, error) {
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[goarch]
	if (goos != "linux" && goos != "darwin") || arch == "" {
		return "", serviceAbsent("no package for %s/%s", goos, goarch)
	}
	return goos + "-" + arch, nil
}

// npmArchive returns the package's tarball from the cache, or fetches it. npm compares a fetched tarball with
// the registry's digest.
func (r *run) npmArchive(ctx context.Context, npm, name, major string) (string, error) {
	version := npmVersions[major]
	kept, err := cacheDirectory()
	if err != nil {
		kept = r.dir.path
	}
	cached := filepath.Join(kept, "postgres-"+name+"-"+version+".tgz")
	if fileExists(cached) {
		return cached, nil
	}
	if err := r.announceInstall("PostgreSQL "+major+" is not installed", "fetching version "+version+" with npm into "+filepath.Dir(cached)); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(cached), "npm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	// npm's own cache is under HOME, which may not exist or not be writable.
	env := append(os.Environ(), "npm_config_cache="+filepath.Join(dir, "cache"), "npm_config_update_notifier=false",
		"npm_config_loglevel=error", "npm_config_fetch_retries=1", "npm_config_fetch_retry_mintimeout=1000", "npm_config_fetch_retry_maxtimeout=2000") // offline, say so soon
	_, err = program{
		path: npm, args: []string{"pack", "@embedded-postgres/" + name + "@" + version}, env: env, dir: dir,
	}.runProgram(ctx, npmTimeout)
	if err != nil {
		return "", err
	}
	packed, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(packed) != 1 {
		return "", fmt.Errorf("npm pack left %d archives, want 1", len(packed))
	}
	// The rename is atomic, so that concurrent runs see the whole file or none.
	return cached, os.Rename(packed[0], cached)
}

// cacheDirectory returns where programs are kept that were fetched. It exists and takes files.
func cacheDirectory() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "sagamill")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	probe, err := os.CreateTemp(dir, "writable-")
	if err != nil {
		return "", err
	}
	return dir, errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// linkLibraries restores the symbolic links between shared libraries. An npm package cannot hold links, so it
// lists them in a file.
func linkLibraries(dir, list string) error {
	content, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(content, &links); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(list), err)
	}
	for _, link := range links {
		if !filepath.IsLocal(link.Source) || !filepath.IsLocal(link.Target) {
			return fmt.Errorf("link %q leads out of the package", link.Target)
		}
		source, err := filepath.Rel(filepath.Dir(link.Target), link.Source)
		if err != nil {
			return err
		}
		if err := os.Symlink(source, filepath.Join(dir, link.Target)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
