package tutorialtest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBlocks(t *testing.T) {
	t.Parallel()
	got, err := Blocks(strings.Join([]string{
		"# Title", "```", "for the reader", "```", "```mermaid", "```", "```go from=x.go", "```",
		"```go file=a/b.go", "package b", "", "var x int", "```",
		"```sh", "true", "```", "text", "```sh serve", "./x", "```", "```sh until", "y", "```", "```output", "z", "```",
	}, "\n"))
	want := []Block{
		{10, Write, "a/b.go", "package b\n\nvar x int\n"}, {15, Run, "", "true\n"}, {19, Serve, "", "./x\n"}, {22, Until, "", "y\n"}, {25, Output, "", "z\n"},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Blocks: %v (-want +got):\n%s", err, diff)
	}
}

func TestBlocksRefuses(t *testing.T) {
	t.Parallel()
	for page, want := range map[string]string{
		"text\n```sh\ntrue":             "line 2: the block is not closed",
		"```go\nx\n```":                 "line 1: \"```go\" says nothing that can be done",
		"```sh often\nx\n```":           "often",
		"```go file=/etc/passwd\n\n```": "passwd",
		"```go file=../x.go\n\n```":     "x.go",
		"```go file\n\n```":             "says nothing",
		"```go from\n\n```":             "says nothing",
	} {
		if all, err := Blocks(page); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want an error with %q", page, all, err, want)
		}
	}
}
