package monitoring

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const docs = "../../../docs/"

// A question is an expression and where it stands.
type question struct{ where, expr, legend string }

// An alert is a rule of Prometheus.
type alert struct {
	name, expr, after   string
	labels, annotations map[string]string
}

// ruleLine is a line of alerts.yml: a key, and its value in quotes or without.
var ruleLine = regexp.MustCompile(`^( *)(- )?([a-z]+):(?: (.+))?$`)

// parseAlerts reads rules that have one key a line, which is all of YAML that they need.
func parseAlerts(text string) (all []alert, err error) {
	var into map[string]string
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		parts := ruleLine.FindStringSubmatch(line)
		if parts == nil {
			return nil, fmt.Errorf("line %d is no key and value", i+1)
		}
		key, value := parts[3], parts[4]
		if strings.HasPrefix(value, `"`) {
			if value, err = strconv.Unquote(value); err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
		}
		if key == "alert" {
			all = append(all, alert{name: value, labels: map[string]string{}, annotations: map[string]string{}})
			continue
		}
		if len(all) == 0 || key == "groups" || key == "name" || key == "rules" {
			continue
		}
		last := &all[len(all)-1]
		switch {
		case key == "expr":
			last.expr = value
		case key == "for":
			last.after = value
		case key == "labels":
			into = last.labels
		case key == "annotations":
			into = last.annotations
		case into != nil && len(parts[1]) == 10:
			into[key] = value
		default:
			return nil, fmt.Errorf("line %d: the key %s", i+1, key)
		}
	}
	return all, nil
}

func readAlerts(t *testing.T) []alert {
	t.Helper()
	text, err := os.ReadFile(docs + "monitoring/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := parseAlerts(string(text))
	if err != nil {
		t.Fatalf("alerts.yml: %v", err)
	}
	return all
}

// readRunbook returns the sections of docs/runbook.md below a heading of the third level, by heading.
func readRunbook(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(docs + "runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, part := range strings.Split(string(text), "\n### ")[1:] {
		heading, section, _ := strings.Cut(part, "\n")
		section, _, _ = strings.Cut(section, "\n## ")
		sections[heading] = strings.TrimSpace(section)
	}
	return sections
}
