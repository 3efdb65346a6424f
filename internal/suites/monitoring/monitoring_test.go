package monitoring

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var legendLabel = regexp.MustCompile(`\{\{ ?(?:\$labels\.)?(\w+) ?\}\}`)

// check returns what is wrong with a question, and notes in asked what it asks for.
func (q question) check(exported map[string]series, asked map[string]bool) (wrong []string) {
	parsed, err := parseQuery(q.expr)
	if err == nil {
		err = checkGrammar(q.expr)
	}
	if err != nil {
		return []string{fmt.Sprintf("%s: %v in %s", q.where, err, q.expr)}
	}
	if len(parsed.selectors) == 0 {
		wrong = append(wrong, fmt.Sprintf("%s: no metric in %s", q.where, q.expr))
	}
	complain := func(s selector, format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("%s: %s %s", q.where, s.metric, fmt.Sprintf(format, args...)))
	}
	for _, s := range parsed.selectors {
		labels, found := exported[s.metric]
		if !found {
			complain(s, "is not exported")
			continue
		}
		asked[s.metric] = true
		for _, m := range s.matchers {
			values, found := labels[m.label]
			if !found {
				complain(s, "has no label %s", m.label)
			}
			for _, v := range m.values {
				if values != nil && !slices.Contains(values, v) {
					complain(s, "never has %s=%q", m.label, v)
				}
			}
		}
		for _, label := range parsed.grouping {
			if _, found := labels[label]; !found {
				complain(s, "has no label %s to group by", label)
			}
		}
	}
	for _, label := range legendLabel.FindAllStringSubmatch(q.legend, -1) {
		if !slices.Contains(parsed.grouping, label[1]) && strings.Contains(q.expr, "(") {
			wrong = append(wrong, fmt.Sprintf("%s: tells of the label %s, which %s does not keep", q.where, label[1], q.expr))
		}
	}
	return wrong
}

// The metrics in the dashboard and the rules are the exported metrics.
func TestWhatIsAskedForIsExported(t *testing.T) {
	t.Parallel()
	all := exported(t)
	addExamples(t, all)
	_, questions := readDashboard(t)
	for _, a := range readAlerts(t) {
		questions = append(questions, question{"alert " + a.name, a.expr, a.annotations["summary"]})
	}
	asked := map[string]bool{}
	for _, q := range questions {
		for _, wrong := range q.check(all, asked) {
			t.Error(wrong)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if !asked[name] && !asked[base+"_bucket"] && !asked[base+"_sum"] {
			t.Errorf("%s is exported, and in neither the dashboard nor the alerts", name)
		}
	}
	if len(all) < 50 || len(questions) < 70 {
		t.Errorf("looked at %d series and %d questions", len(all), len(questions))
	}
}

// Every instance of a service exports the counts of its tables, and so does each consumer of one schema. The metrics below
// are such counts: each expression takes the greatest of them before it adds them.
func TestCountsOfTablesAreNotAddedTwice(t *testing.T) {
	t.Parallel()
	count := regexp.MustCompile(`(max by \([^)]*\) \()?sagamill_(parked_\w+|outbox_messages|outbox_oldest_seconds|saga_instances_live)`)
	_, questions := readDashboard(t)
	for _, a := range readAlerts(t) {
		questions = append(questions, question{"alert " + a.name, a.expr, ""})
	}
	found := 0
	for _, q := range questions {
		for _, asked := range count.FindAllStringSubmatch(q.expr, -1) {
			found++
			if asked[1] == "" {
				t.Errorf("%s: %s is not within max by (…): two instances or consumers count double", q.where, q.expr)
			}
		}
	}
	if found < 10 {
		t.Errorf("looked at %d counts", found)
	}
}

func TestQuestionsAreChecked(t *testing.T) {
	t.Parallel()
	all := map[string]series{"x": {"job": nil, "state": {"dead"}}}
	for expr, want := range map[string]int{
		`sum by (job) (x{state="dead"})`: 0, `y`: 1, `x{a="b"}`: 1, `x{state="gone"}`: 1, `sum by (a) (x)`: 1, `1`: 1, `x{`: 1,
	} {
		if got := (question{expr: expr}).check(all, map[string]bool{}); len(got) != want {
			t.Errorf("%s: %q, want %d messages", expr, got, want)
		}
	}
	if got := (question{expr: "sum by (job) (x)", legend: "{{job}} {{ $labels.state }}"}).check(all, map[string]bool{}); len(got) != 1 {
		t.Errorf("a legend with a label that is gone: %q", got)
	}
}

// runbookLines limits a section of the runbook: a person at night reads it whole.
const runbookLines = 25

// Each alert says how bad it is and what has happened, and leads to its own section of the runbook.
func TestAlertsLeadToTheRunbook(t *testing.T) {
	t.Parallel()
	sections, seen := readRunbook(t), map[string]bool{}
	alerts := readAlerts(t)
	for _, a := range alerts {
		if seen[a.name] || !strings.HasPrefix(a.name, "Sagamill") {
			t.Errorf("the name %s: twice, or without its prefix", a.name)
		}
		seen[a.name] = true
		if a.expr == "" || a.after == "" || a.annotations["summary"] == "" || a.annotations["description"] == "" {
			t.Errorf("%s lacks expr, for, summary or description", a.name)
		}
		if s := a.labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s has the severity %q", a.name, s)
		}
		if want := "docs/runbook.md#" + strings.ToLower(a.name); a.annotations["runbook"] != want {
			t.Errorf("%s: runbook is %q, want %q", a.name, a.annotations["runbook"], want)
		}
		if sections[a.name] == "" {
			t.Errorf("docs/runbook.md has no section %s", a.name)
		}
	}
	if len(alerts) < 20 {
		t.Errorf("%d alerts", len(alerts))
	}
	for heading, section := range sections {
		if strings.HasPrefix(heading, "Sagamill") && !seen[heading] {
			t.Errorf("docs/runbook.md: there is no alert %s", heading)
		}
		if lines := strings.Count(section, "\n") + 1; lines >= runbookLines {
			t.Errorf("docs/runbook.md: %s has %d lines, want fewer than %d", heading, lines, runbookLines)
		}
		for _, part := range []string{"- *Symptom:*", "- *Check", "- *Action"} {
			if !strings.Contains(section, part) && heading != "Find a damaged record" {
				t.Errorf("docs/runbook.md: %s lacks %q", heading, part)
			}
		}
	}
}
