package archtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// readRoot returns the text of the file called name.
func readRoot(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	return string(text), err
}

// mustReadRoot is readRoot for a file that a test needs.
func mustReadRoot(t *testing.T, name string) string {
	t.Helper()
	text, err := readRoot(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Documents say what the code, the servers of docker-compose.yml and the Makefile do.
func TestDocumentsSayWhatIs(t *testing.T) {
	t.Parallel()
	compose, makefile := mustReadRoot(t, "docker-compose.yml"), mustReadRoot(t, "Makefile")
	all := documents(t)
	for name, document := range all {
		wrong := checkCredentials(name, document, compose)
		wrong = append(wrong, checkTargets(name, document, makefile)...)
		if !strings.HasPrefix(name, "docs/decisions/") { // which say what was decided then
			wrong = append(wrong, checkDefaults(name, document, statedDefaults, readRoot)...)
		}
		for _, w := range wrong {
			t.Error(w)
		}
	}
	for _, d := range statedDefaults {
		if all[d.document] == "" {
			t.Errorf("statedDefaults: there is no document %s", d.document)
		}
	}
	for _, wrong := range checkContributing(all["CONTRIBUTING.md"], mustReadRoot(t, ".ci/run")) {
		t.Error(wrong)
	}
	for _, wrong := range checkTutorial(all["docs/tutorial-choreography.md"]) {
		t.Error(wrong)
	}
	for _, wrong := range checkReadmeFacts(all["README.md"], mustReadRoot(t, "go.mod"), compose, makefile) {
		t.Error(wrong)
	}
}

func TestCheckDefaults(t *testing.T) {
	t.Parallel()
	stated := []statedDefault{{"a.md", "waits 5 s by default", "a.go", "Wait = 5 * time.Second"}}
	for name, tt := range map[string]struct{ document, code, want string }{
		"the same":       {"It waits 5 s\nby default.", "const Wait = 5 * time.Second", ""},
		"changed code":   {"It waits 5 s by default.", "const Wait = 6 * time.Second", "is not the default"},
		"changed prose":  {"It waits 6 s by default.", "const Wait = 5 * time.Second", "lacks"},
		"another number": {"It waits 5 s by default, and tries 10 times by default.", "const Wait = 5 * time.Second", `"10 times by default" is compared with no line`},
		"no file":        {"It waits 5 s by default.", "", "gone"},
	} {
		got := strings.Join(checkDefaults("a.md", tt.document, stated, func(string) (string, error) {
			if tt.code == "" {
				return "", errors.New("gone")
			}
			return tt.code, nil
		}), "\n")
		if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestCheckCredentials(t *testing.T) {
	t.Parallel()
	compose := "services:\n  postgres:\n    environment:\n      POSTGRES_PASSWORD: secret\n"
	for document, want := range map[string]int{
		"psql postgres://postgres:secret@127.0.0.1:5432/x":                                 0,
		"psql postgres://postgres@127.0.0.1:5432/x and amqp://guest:guest@localhost:5672/": 1,
		"amqp://guest@127.0.0.1:5672/ postgres://other@db.example:5432/":                   1,
	} {
		if got := checkCredentials("a.md", document, compose); len(got) != want {
			t.Errorf("%s: %q, want %d messages", document, got, want)
		}
	}
	if got := checkCredentials("a.md", "", "services:\n"); len(got) != 1 {
		t.Errorf("without a password: %q, want one message", got)
	}
}

func TestCheckTargets(t *testing.T) {
	t.Parallel()
	got := checkTargets("a.md", "`make check`, `make bin/tool`\n\nmake sure\n", "check: ## all\n\nbin/tool: FORCE\n")
	if len(got) != 1 || !strings.Contains(got[0], "make sure") {
		t.Errorf("%q, want one message about make sure", got)
	}
}

func TestCheckContributing(t *testing.T) {
	t.Parallel()
	run := "set -e\n\npart make check\npart make vuln\n"
	for contributing, want := range map[string]int{
		"# C\n\n`make check` and `make vuln` are it.\n\nMore.\n": 0,
		"# C\n\n`make check` is it.\n\n`make vuln` too.\n":       1,
	} {
		if got := checkContributing(contributing, run); len(got) != want {
			t.Errorf("%q: %q, want %d messages", contributing, got, want)
		}
	}
}

func TestCheckTutorial(t *testing.T) {
	t.Parallel()
	file := "```go file=main.go\n" + strings.Repeat("x\n", 12) + "```\n"
	for announced, want := range map[string]int{"10 lines of Go": 0, "20 lines of Go": 1, "some lines": 1} {
		if got := checkTutorial("It takes " + announced + ".\n\n" + file); len(got) != want {
			t.Errorf("%s: %q, want %d messages", announced, got, want)
		}
	}
}

func TestCheckReadmeFacts(t *testing.T) {
	t.Parallel()
	readme := "| Go | 1.26 or later |\n| PostgreSQL | 14, 15 or 18 |\n| RabbitMQ | 4.3 and 3.10 |\n| watermill | v1.5.1 |\n"
	gomod := "module m\n\ngo 1.26.0\n\nrequire github.com/ThreeDotsLabs/watermill v1.5.1\n"
	compose := "    image: postgres:18.4\n    image: rabbitmq:4.3.6-management\n"
	makefile := "test-postgres: ## on private servers of PostgreSQL PG=14, 15 or 18; PKG narrows\n"
	for name, tt := range map[string]struct {
		readme, gomod, compose string
		want                   int
	}{
		"as it is":      {readme, gomod, compose, 0},
		"too long":      {readme + strings.Repeat("\n", readmeLines), gomod, compose, 1},
		"newer Go":      {readme, strings.Replace(gomod, "1.26", "1.27", 1), compose, 1},
		"newer broker":  {readme, gomod, strings.Replace(compose, "4.3.6", "4.4.0", 1), 1},
		"newer library": {readme, strings.Replace(gomod, "v1.5.1", "v1.6.0", 1), compose, 1},
	} {
		if got := checkReadmeFacts(tt.readme, tt.gomod, tt.compose, makefile); len(got) != tt.want {
			t.Errorf("%s: %q, want %d messages", name, got, tt.want)
		}
	}
}
