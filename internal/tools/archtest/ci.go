package archtest

import (
	"fmt"
	"regexp"
	"strings"
)

// runStep matches a step of a workflow that runs commands.
var runStep = regexp.MustCompile(`(?m)^\s*(?:- )?run:[ \t]*(.*)$`)

// checkWorkflow returns the mistakes in CI's workflow. It must run .ci/run and nothing else, so that every
// step of CI can run anywhere.
func checkWorkflow(workflow string) []string {
	steps := runStep.FindAllStringSubmatch(workflow, -1)
	if len(steps) == 1 && steps[0][1] == ".ci/run" {
		return nil
	}
	return []string{fmt.Sprintf("the workflow must run .ci/run and nothing else; it has %d run steps", len(steps))}
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
		commands = append(commands, step[1])
	}
	if len(commands) >= 2 && commands[0] == ".ci/run" && strings.HasPrefix(commands[1], ".ci/release ") {
		return nil
	}
	return []string{fmt.Sprintf("the workflow of a release must run .ci/run and then .ci/release; its steps are %q", commands)}
}
