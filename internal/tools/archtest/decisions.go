package archtest

import (
	"fmt"
	"regexp"
	"strings"
)

var decisionHeading = regexp.MustCompile(`(?m)^### (.*)$`)

// checkDecisions returns what is wrong with the entries of docs/design.md: they are
// numbered, and each says what was rejected.
func checkDecisions(doc string) (wrong []string) {
	_, doc, _ = strings.Cut(doc, "\n## Decisions\n")
	headings := decisionHeading.FindAllStringSubmatchIndex(doc, -1)
	for i, at := range headings {
		title, end := doc[at[2]:at[3]], len(doc)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		if !strings.HasPrefix(title, fmt.Sprintf("%d. ", i+1)) {
			wrong = append(wrong, fmt.Sprintf("docs/design.md: %q is decision %d", title, i+1))
		}
		if !strings.Contains(doc[at[1]:end], "\n*Rejected") {
			wrong = append(wrong, fmt.Sprintf("docs/design.md: %q does not say what was *Rejected*", title))
		}
	}
	if len(headings) == 0 {
		wrong = append(wrong, "docs/design.md: there are no decisions")
	}
	return wrong
}
