package archtest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var (
	decisionFile   = regexp.MustCompile(`^(\d{3})-[a-z0-9-]+\.md$`)
	decisionTop    = regexp.MustCompile(`^# (\d{3})\. (.+)\n\nStatus: (.+)\n`)
	decisionStatus = regexp.MustCompile(`^(?:accepted|superseded by \[(\d{3})\]\(([^)]+)\))$`)
	rejected       = regexp.MustCompile(`\n## Rejected alternatives\n\n[^\n#]`)
	decisionRow    = regexp.MustCompile(`(?m)^\| \[\d{3}\]\([^)]+\) \|.*$`)
)

// checkDecisions returns the mistakes in the pages of docs/decisions, by file name, and in
// their index. Pages are numbered without gaps or doubles, and each says which alternatives
// were rejected. A superseded page links to an existing page. The index has one row for each
// page, in order, with its title and status.
func checkDecisions(index string, pages map[string]string) (wrong []string) {
	complain := func(format string, args ...any) {
		wrong = append(wrong, "docs/decisions/"+fmt.Sprintf(format, args...))
	}
	if len(pages) == 0 {
		complain(": there are no decisions")
	}
	var rows []string
	for i, name := range slices.Sorted(maps.Keys(pages)) {
		number := decisionFile.FindStringSubmatch(name)
		if number == nil {
			complain("%s: want a name like 001-plain-title.md", name)
			continue
		}
		if want := fmt.Sprintf("%03d", i+1); number[1] != want {
			complain("%s: the next number is %s", name, want)
		}
		top := decisionTop.FindStringSubmatch(pages[name])
		if top == nil || top[1] != number[1] {
			complain("%s: want the lines '# %s. Title' and 'Status: …' at the top", name, number[1])
			continue
		}
		if problem := checkDecisionStatus(top[3], pages); problem != "" {
			complain("%s: %s", name, problem)
		}
		if !rejected.MatchString(pages[name]) {
			complain("%s: does not say under '## Rejected alternatives' what was rejected", name)
		}
		rows = append(rows, fmt.Sprintf("| [%s](%s) | %s | %s |", number[1], name, top[2], top[3]))
	}
	return append(wrong, checkDecisionIndex(index, rows)...)
}

// checkDecisionStatus returns the mistake in a page's status, or "".
func checkDecisionStatus(status string, pages map[string]string) string {
	parts := decisionStatus.FindStringSubmatch(status)
	switch {
	case parts == nil:
		return fmt.Sprintf("status %q, want 'accepted' or 'superseded by [NNN](NNN-title.md)'", status)
	case parts[2] != "" && (pages[parts[2]] == "" || !strings.HasPrefix(parts[2], parts[1]+"-")):
		return fmt.Sprintf("status %q links to no page of that number", status)
	}
	return ""
}

// checkDecisionIndex returns the rows that the index lacks, and those that belong to no page.
func checkDecisionIndex(index string, rows []string) (wrong []string) {
	listed := decisionRow.FindAllString(index, -1)
	for _, row := range rows {
		if !slices.Contains(listed, row) {
			wrong = append(wrong, "docs/decisions/README.md: lacks the row "+row)
		}
	}
	for _, row := range listed {
		if !slices.Contains(rows, row) {
			wrong = append(wrong, "docs/decisions/README.md: no page has the row "+row)
		}
	}
	if len(wrong) == 0 && !slices.Equal(listed, rows) {
		wrong = append(wrong, "docs/decisions/README.md: rows are not in the order of the pages")
	}
	return wrong
}
