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
	for _, command := range []string{"set -euo pipefail", "make check", "make test", "make verify", "make fuzz"} {
		if !strings.Contains(script, "\n"+command+"\n") {
			wrong = append(wrong, fmt.Sprintf(".ci/run: lacks %q", command))
		}
	}
	return wrong
}
