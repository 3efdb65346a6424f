// Command apilist lists the public API of the module in api/next.txt, one line for each thing that a user's
// code may depend on. A review then sees a change of the API as a change of that file.
//
//	apilist       # check that the listing matches the code and lacks nothing of the newest release
//	apilist -w    # write the listing
//
// A release is a tag vX.Y.Z that HEAD descends from. It promises the listing of its commit. The first line of
// api/next.txt names the version that the code becomes. The next major version may remove lines of the
// release, and before 1.0 the next minor version too.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

// listingPath is where the listing is, in the module's root and in every commit.
const listingPath = "api/next.txt"

func main() {
	write := flag.Bool("w", false, "write "+listingPath)
	flag.Parse()
	if err := run(*write); err != nil {
		fmt.Fprintln(os.Stderr, "apilist:", err)
		os.Exit(1)
	}
}

func run(write bool) error {
	lines, err := listModule()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(listingPath)
	if err != nil && !(write && os.IsNotExist(err)) {
		return err
	}
	next, recorded, err := parseListing(string(content))
	if err != nil {
		return err
	}
	if write {
		return os.WriteFile(listingPath, []byte(formatListing(next, lines)), 0o644)
	}
	if diff := differences(recorded, lines); len(diff) > 0 {
		return fmt.Errorf("%s is not the API of the code (if the code is right: make api)\n%s", listingPath, strings.Join(diff, "\n"))
	}
	return checkReleases(next, lines)
}

// checkReleases compares lines, which become version next, with the newest release. If HEAD is that release, lines are
// compared with the one before too: the release compared with itself has lost nothing.
func checkReleases(next version, lines []string) error {
	tag, why := newestRelease()
	if why != "" {
		fmt.Printf("apilist: %d lines, compared with %s alone: %s\n", len(lines), listingPath, why)
		return nil
	}
	if before, why := newestRelease("--no-contains", "HEAD"); why == "" && before != tag {
		if err := checkRelease(before, next, lines); err != nil {
			return err
		}
	}
	return checkRelease(tag, next, lines)
}

// checkRelease compares lines with the release tag.
func checkRelease(tag, next version, lines []string) error {
	content, err := showFile(tag)
	if err != nil {
		return err
	}
	_, released, err := parseListing(content)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", listingPath, tag, err)
	}
	gone := missing(released, lines)
	if len(gone) == 0 || mayBreak(tag, next) {
		fmt.Printf("apilist: %d lines; of those of %s, %d are gone\n", len(lines), tag, len(gone))
		return nil
	}
	return fmt.Errorf("the API of %s has lost this, and the first line of %s says that %s is next: a version that may break it "+
		"is the next major one, and before 1.0 the next minor one\n%s", tag, listingPath, next, strings.Join(gone, "\n"))
}

// header is the start of the first line of a listing. The version that the code becomes follows it.
const header = "# next: "

// parseListing returns the lines of a listing and the version in its header. For empty content that is the
// first version.
func parseListing(content string) (next version, lines []string, err error) {
	if content == "" {
		return version{0, 1, 0}, nil, nil
	}
	first, rest, _ := strings.Cut(content, "\n")
	next, ok := parseVersion(strings.TrimPrefix(first, header))
	if !ok || !strings.HasPrefix(first, header) {
		return next, nil, fmt.Errorf("the first line of a listing is %q, want %q and a version", first, header)
	}
	return next, strings.Split(strings.TrimSuffix(rest, "\n"), "\n"), nil
}

func formatListing(next version, lines []string) string {
	return header + next.String() + "\n" + strings.Join(lines, "\n") + "\n"
}

// missing returns the lines of old that current lacks, each with its replacement in current.
func missing(old, current []string) (gone []string) {
	instead := map[string]string{}
	for _, line := range current {
		instead[symbol(line)] = line
	}
	for _, line := range old {
		if _, found := slices.BinarySearch(current, line); found {
			continue
		}
		if now, ok := instead[symbol(line)]; ok {
			gone = append(gone, fmt.Sprintf("  %s: changed\n\t- %s\n\t+ %s", symbol(line), line, now))
		} else {
			gone = append(gone, fmt.Sprintf("  %s: gone\n\t- %s", symbol(line), line))
		}
	}
	return gone
}

// differences returns the lines that current or recorded lacks.
func differences(recorded, current []string) []string {
	diff := missing(recorded, current)
	known := map[string]bool{}
	for _, line := range recorded {
		known[symbol(line)] = true
	}
	for _, line := range current {
		if !known[symbol(line)] {
			diff = append(diff, fmt.Sprintf("  %s: new\n\t+ %s", symbol(line), line))
		}
	}
	return diff
}
