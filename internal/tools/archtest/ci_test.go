package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRunIsExecutable(t *testing.T) {
	t.Parallel()
	info, err := os.Stat(filepath.Join(root, ".ci/run"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o111 == 0 {
		t.Errorf(".ci/run has mode %v, want it executable", info.Mode())
	}
}

// The jobs of CI run each part of .ci/run once.
func TestJobsRunEachPart(t *testing.T) {
	t.Parallel()
	workflow, script := mustReadRoot(t, ".github/workflows/ci.yml"), mustReadRoot(t, ".ci/run")
	for _, wrong := range checkJobs(workflow, script) {
		t.Error(wrong)
	}
	if got := checkJobs("parts: check test", "\npart make check\npart make test\npart make fuzz\n"); len(got) != 1 {
		t.Errorf("without fuzz: %q, want one message", got)
	}
}

// Dependabot knows each module, and each package of npm.
func TestDependabotKnowsEachModule(t *testing.T) {
	t.Parallel()
	var manifests []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"bin", "node_modules", "testdata"}, d.Name())) {
			return filepath.SkipDir
		}
		if err == nil && (d.Name() == "go.mod" || d.Name() == "package.json") {
			relative, _ := filepath.Rel(root, name)
			manifests = append(manifests, filepath.ToSlash(relative))
		}
		return err
	})
	if err != nil || len(manifests) < 2 {
		t.Fatalf("found %q, %v", manifests, err)
	}
	for _, wrong := range checkDependabot(mustReadRoot(t, ".github/dependabot.yml"), manifests) {
		t.Error(wrong)
	}
	if got := checkDependabot("  - /\n  - /chaos\n", []string{"go.mod", "chaos/go.mod", "bench/go.mod"}); len(got) != 1 {
		t.Errorf("without bench: %q, want one message", got)
	}
}

func TestCheckWorkflow(t *testing.T) {
	t.Parallel()
	const digest = "0123456789abcdef0123456789abcdef01234567"
	tests := []struct {
		name, workflow string
		want           int
	}{
		{"only the script", "steps:\n  - uses: x/y@" + digest + " # v1.2.3\n  - run: .ci/install\n  - run: .ci/run ${{ matrix.parts }}\n", 0},
		{"a tag", "steps:\n  - uses: x/y@v5\n  - run: .ci/run\n", 1},
		{"no version", "steps:\n  - uses: x/y@" + digest + "\n  - run: .ci/run\n", 1},
		{"something besides", "steps:\n  - run: .ci/run\n  - name: lint\n    run: lint\n", 1},
		{"something else", "steps:\n  - run: make test\n", 1},
		{"nothing", "steps: []\n", 1},
	}
	for _, tt := range tests {
		if got := checkWorkflow(tt.workflow); len(got) != tt.want {
			t.Errorf("%s: checkWorkflow = %q, want %d messages", tt.name, got, tt.want)
		}
	}
	if got := checkRun("#!/bin/sh\npart make test\n"); len(got) != 7 {
		t.Errorf("checkRun of make test alone = %q, want 7 messages", got)
	}
	for workflow, want := range map[string]int{
		"- run: .ci/run\n- run: .ci/release v1\n- run: gh release create v1\n":      0,
		"- run: .ci/install\n- run: .ci/run\n- uses: x@v1\n- run: .ci/release v1\n": 1,
		"- run: .ci/release v1\n- run: .ci/run\n":                                   1,
		"- run: .ci/release v1\n":                                                   1,
	} {
		if got := checkRelease(workflow); len(got) != want {
			t.Errorf("checkRelease(%q) = %q, want %d messages", workflow, got, want)
		}
	}
}
