package archtest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// runStep matches a step of a workflow that runs commands.
var runStep = regexp.MustCompile(`(?m)^\s*(?:- )?run:[ \t]*(.*)$`)

// checkWorkflow returns the mistakes in a workflow. It runs scripts of .ci/ alone, so that every step of CI can run
// anywhere.
func checkWorkflow(workflow string) (wrong []string) {
	steps := runStep.FindAllStringSubmatch(workflow, -1)
	for _, step := range steps {
		if script, _, _ := strings.Cut(step[1], " "); !slices.Contains([]string{".ci/install", ".ci/run", ".ci/nightly"}, script) {
			wrong = append(wrong, fmt.Sprintf("a workflow must run scripts of .ci/ and nothing else; it runs %q", step[1]))
		}
	}
	if len(steps) == 0 {
		wrong = append(wrong, "the workflow runs nothing")
	}
	return append(wrong, checkPins(workflow)...)
}

var (
	// action matches a step that uses an action.
	action = regexp.MustCompile(`(?m)^\s*(?:- )?uses:[ \t]*(.*)$`)
	pinned = regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
)

// checkPins returns the actions that are not pinned by the digest of a commit: a tag can be moved.
func checkPins(workflow string) (wrong []string) {
	for _, uses := range action.FindAllStringSubmatch(workflow, -1) {
		if !pinned.MatchString(uses[1]) {
			wrong = append(wrong, fmt.Sprintf("the action %q is not pinned, as in OWNER/NAME@DIGEST # vX.Y.Z", uses[1]))
		}
	}
	return wrong
}

// jobParts matches the parts of .ci/run that a job runs.
var jobParts = regexp.MustCompile(`\bparts: ([a-z -]+)`)

// checkJobs returns the parts of .ci/run, the script, that no job of the workflow runs, or several.
func checkJobs(workflow, script string) (wrong []string) {
	var run []string
	for _, job := range jobParts.FindAllStringSubmatch(workflow, -1) {
		run = append(run, strings.Fields(job[1])...)
	}
	for _, command := range commandOfCI.FindAllStringSubmatch(script, -1) {
		part := strings.TrimPrefix(command[1], "make ")
		if n := len(slices.DeleteFunc(slices.Clone(run), func(name string) bool { return name != part })); n != 1 {
			wrong = append(wrong, fmt.Sprintf("%d jobs of the workflow run the part %s of .ci/run, want 1", n, part))
		}
	}
	return wrong
}

// checkDependabot returns the folders with a file called manifest that dependabot.yml lacks.
func checkDependabot(config string, manifests []string) (wrong []string) {
	for _, name := range manifests {
		folder := path.Join("/", path.Dir(name))
		if !regexp.MustCompile(`(?m)^\s*(?:-|directory:) ` + regexp.QuoteMeta(folder) + `$`).MatchString(config) {
			wrong = append(wrong, "dependabot.yml lacks "+folder+" of "+name)
		}
	}
	return wrong
}

// checkRun returns the mistakes in .ci/run.
func checkRun(script string) []string {
	var wrong []string
	for _, command := range []string{"set -euo pipefail", "part make check", "part make vuln", "part make cross", "part make test", "part make verify", "part make test-console", "part make fuzz"} {
		if !strings.Contains(script, "\n"+command+"\n") {
			wrong = append(wrong, fmt.Sprintf(".ci/run: lacks %q", command))
		}
	}
	return wrong
}

// checkRelease returns the mistakes in the workflow of a release. It must test as CI does, before it makes the files.
func checkRelease(workflow string) []string {
	var commands []string
	for _, step := range runStep.FindAllStringSubmatch(workflow, -1) {
		if step[1] != ".ci/install" {
			commands = append(commands, step[1])
		}
	}
	wrong := checkPins(workflow)
	if len(commands) < 2 || commands[0] != ".ci/run" || !strings.HasPrefix(commands[1], ".ci/release ") {
		wrong = append(wrong, fmt.Sprintf("the workflow of a release must run .ci/run and then .ci/release; its steps are %q", commands))
	}
	return wrong
}
