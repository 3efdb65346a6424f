package main

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A version is a major, minor and patch number.
type version [3]int

// A pre-release promises nothing and is not a version.
var versionText = regexp.MustCompile(`^v(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})$`)

func parseVersion(text string) (v version, ok bool) {
	m := versionText.FindStringSubmatch(text)
	if m == nil {
		return v, false
	}
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // digits
	}
	return v, true
}

func (v version) String() string { return fmt.Sprintf("v%d.%d.%d", v[0], v[1], v[2]) }

// mayBreak reports whether next may lack lines that released has.
func mayBreak(released, next version) bool {
	if next[0] == 0 && released[0] == 0 {
		return next[1] > released[1]
	}
	return next[0] > released[0]
}

// newest returns the highest version among tags.
func newest(tags []string) (v version, ok bool) {
	for _, tag := range tags {
		if candidate, isVersion := parseVersion(tag); isVersion && (!ok || slices.Compare(candidate[:], v[:]) > 0) {
			v, ok = candidate, true
		}
	}
	return v, ok
}

// newestRelease returns the newest release that HEAD is or descends from, or the reason why there is none. Options of git
// tag leave out some.
func newestRelease(options ...string) (v version, why string) {
	tags, err := git(append([]string{"tag", "--list", "v*", "--merged", "HEAD"}, options...)...)
	if err != nil {
		return v, err.Error()
	}
	if v, ok := newest(strings.Fields(tags)); ok {
		return v, ""
	}
	if shallow, err := git("rev-parse", "--is-shallow-repository"); err == nil && strings.TrimSpace(shallow) == "true" {
		return v, "this clone is shallow and may lack the releases' tags (git fetch --unshallow --tags)"
	}
	return v, "no release is tagged yet"
}

// showFile returns the listing of a release.
func showFile(tag version) (string, error) { return git("show", tag.String()+":./"+listingPath) }

// git reads the repository, no matter which account owns it: containers often build in a tree of another
// account.
func git(args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-c", "safe.directory=*"}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		first, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		return "", fmt.Errorf("git %s: %s", args[0], first)
	}
	return string(out), err
}
