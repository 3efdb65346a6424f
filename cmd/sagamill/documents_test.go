package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The commands in the documents exist, and have these flags.
func TestCommandsOfDocuments(t *testing.T) {
	t.Parallel()
	found := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/monitoring/*.yml", "examples/*/README.md"} {
		names, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if filepath.Base(name) == "CHANGELOG.md" {
				continue // it has commands of the past
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, command := range findQuotedCommands(string(text)) {
				found++
				if problem := checkQuotedCommand(command); problem != "" {
					t.Errorf("%s: `sagamill %s`: %s", name, command, problem)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d commands in the documents, want more than 100", found)
	}
}

func TestCheckQuotedCommand(t *testing.T) {
	t.Parallel()
	text := "`sagamill dead list\n-schema a` and `bin/sagamill why -nope K`, sagamill sideways\n```\ngo tool sagamill dead lst -id 1   # why\nsagamill status -json | jq\n" +
		"sagamill dev go run -x .\nsagamill dead edit -header '-x=1' -n\n```\n```go\nsagamill.New(c)\n```\n"
	want := []string{"dead list -schema a", "why -nope K", "dead lst -id 1", "status -json", "dev go run -x .", "dead edit -header '-x=1' -n"}
	got := findQuotedCommands(text)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("found %q, want %q", got, want)
	}
	for i, want := range []string{"", "no flag -nope", "no such command", "", "", ""} {
		if problem := checkQuotedCommand(got[i]); problem != want {
			t.Errorf("sagamill %s: %q, want %q", got[i], problem, want)
		}
	}
}

var (
	fencedBlock  = regexp.MustCompile("(?ms)^```.*?^```")
	codeSpan     = regexp.MustCompile("`([^`]+)`")
	commandStart = regexp.MustCompile(`^(?:\$ )?(?:go tool |bin/|\./|go run \./cmd/)?sagamill ([a-z-].*)$`)
	commandEnd   = regexp.MustCompile(` +[|>#&;].*$`)
	quotedText   = regexp.MustCompile(`'[^']*'|"[^"]*"`)
	namedFlag    = regexp.MustCompile(`^--?([a-z][a-z-]*)`)
)

// findQuotedCommands returns the commands of sagamill in the code spans and code blocks of text.
func findQuotedCommands(text string) (commands []string) {
	add := func(line string) {
		if parts := commandStart.FindStringSubmatch(strings.TrimSpace(line)); parts != nil {
			commands = append(commands, commandEnd.ReplaceAllString(parts[1], ""))
		}
	}
	for _, span := range codeSpan.FindAllStringSubmatch(fencedBlock.ReplaceAllString(text, ""), -1) {
		add(strings.Join(strings.Fields(span[1]), " "))
	}
	for _, block := range fencedBlock.FindAllString(text, -1) {
		for line := range strings.Lines(block) {
			add(line)
		}
	}
	return commands
}

// checkQuotedCommand returns what is wrong with a command of a document, or "". It may be only the first word of several
// commands.
func checkQuotedCommand(command string) string {
	words := strings.Fields(quotedText.ReplaceAllString(command, "TEXT"))
	cmd, rest, found := findCommand(words)
	if !found {
		if words[0] == "help" || strings.HasPrefix(words[0], "-") || findUnknownWords(words) == "" && len(words) < 3 {
			return ""
		}
		return "no such command"
	}
	if cmd.Words == "dev" {
		return "" // another program's words follow
	}
	var help bytes.Buffer
	if code := printHelp(strings.Fields(cmd.Words), &help, &help); code != 0 {
		return fmt.Sprintf("its help ends with %d", code)
	}
	for _, word := range rest {
		if name := namedFlag.FindStringSubmatch(word); name != nil && name[1] != "h" && !strings.Contains(help.String(), "\n  -"+name[1]+" ") {
			return "no flag -" + name[1]
		}
	}
	return ""
}
