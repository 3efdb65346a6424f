package archtest

import (
	"fmt"
	"strings"
)

// minVersions are the oldest versions that go.mod may require, each with the fault of the versions before.
var minVersions = []struct{ module, version, why string }{
	{"github.com/jackc/pgx/v5", "v5.12.0", "SQL injection in simple-protocol batches and a channel binding bypass before"},
	{"github.com/rabbitmq/amqp091-go", "v1.16.0", "the second dial with one configuration fails before"},
}

// checkModule returns the mistakes in the requirements of a go.mod.
func checkModule(gomod string) []string {
	required := requirements(gomod)
	var wrong []string
	for _, m := range minVersions {
		got, ok := required[m.module]
		if !ok {
			wrong = append(wrong, fmt.Sprintf("go.mod: does not require %s", m.module))
		} else if isOlder(got, m.version) {
			wrong = append(wrong, fmt.Sprintf("go.mod: requires %s %s, want at least %s: %s", m.module, got, m.version, m.why))
		}
	}
	return wrong
}

// requirements returns the version of each module that gomod requires.
func requirements(gomod string) map[string]string {
	required := make(map[string]string)
	for line := range strings.Lines(gomod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && strings.HasPrefix(fields[1], "v") {
			required[fields[0]] = fields[1]
		}
	}
	return required
}

// isOlder reports whether version a comes before b. A pre-release and an unreadable version count as older.
func isOlder(a, b string) bool {
	var x, y [3]int
	if strings.Contains(a, "-") {
		return true
	}
	if _, err := fmt.Sscanf(a, "v%d.%d.%d", &x[0], &x[1], &x[2]); err != nil {
		return true
	}
	if _, err := fmt.Sscanf(b, "v%d.%d.%d", &y[0], &y[1], &y[2]); err != nil {
		return true
	}
	for i := range x {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return false
}

// checkMakefile makes sure that programs for users are built without tags. Tags are for tests and for vet.
func checkMakefile(content string) []string {
	var wrong []string
	for line := range strings.Lines(content) {
		if strings.Contains(line, "-tags") && !strings.Contains(line, " vet ") && !strings.HasPrefix(line, "TESTFLAGS") {
			wrong = append(wrong, "Makefile: only tests and vet have tags: "+strings.TrimSpace(line))
		}
	}
	return wrong
}
