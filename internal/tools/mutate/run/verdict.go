package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// A fate is the result of a mutant's trials.
type fate string

const (
	killed   fate = "killed"
	survived fate = "survived"
	broken   fate = "broken" // nothing can be said: the list is wrong, or a test
)

// A verdict is the fate of the mutant with that index.
type verdict struct {
	index  int
	fate   fate
	why    string // of broken; of survived, if the test did fail
	took   time.Duration
	output string // of the test
}

// A result is the result of one run of a test.
type result struct {
	end    end
	output string
}

// An end is how the run of a test has ended.
type end string

const (
	passed  end = "passes"
	failed  end = "fails"
	skipped end = "is skipped"
	absent  end = "does not exist"
	hung    end = "does not end in time"
	died    end = "ends its process without having failed"
)

// endOf returns how the test called name has ended, by its output.
func endOf(name, output string, success, timeOver bool) end {
	has := func(mark string) bool {
		return strings.Contains("\n"+output, "\n--- "+mark+": "+name+" (")
	}
	switch {
	case timeOver, strings.Contains(output, "\npanic: test timed out after "):
		return hung
	case !success && has("FAIL"):
		return failed
	case !success:
		return died
	case has("SKIP"):
		return skipped
	case has("PASS"):
		return passed
	}
	return absent
}

// judge returns the fate of a mutant whose test has ended that way. A test has seen the mutant if it fails
// with the text that its trap expects. A test that hangs has seen it only if the list expects that, because a
// slow machine looks the same.
func (r result) judge(says string, hangs bool) (f fate, why string) {
	switch {
	case r.end == failed && !strings.Contains(r.output, says):
		return survived, fmt.Sprintf(": it fails, but not with %q:\n%s", says, excerpt(r.output))
	case r.end == failed, r.end == hung && hangs:
		return killed, ""
	case r.end == passed:
		return survived, ""
	}
	return broken, "the test " + string(r.end)
}

var failure = regexp.MustCompile(`(?m)^ +\S+_test\.go:\d+: .*$`)

// maxExcerpt is how many lines of a test's output are shown.
const maxExcerpt = 3

// excerpt returns the first failures in output.
func excerpt(output string) string {
	var b strings.Builder
	for _, line := range failure.FindAllString(output, maxExcerpt) {
		b.WriteString("\t" + strings.TrimSpace(line) + "\n")
	}
	return b.String()
}
