package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// docs/configuration.md is what the comments of the options say. make reference writes it.
func TestConfigurationPage(t *testing.T) {
	t.Parallel()
	files, err := parsedModule()
	if err != nil {
		t.Fatal(err)
	}
	page, wrong := writeReference(publicStructs(files))
	for _, w := range wrong {
		t.Error(w)
	}
	name := filepath.Join(root, "docs", "configuration.md")
	if os.Getenv("RECORD_REFERENCE") != "" {
		if err := os.WriteFile(name, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	recorded, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(recorded) != page {
		t.Error("docs/configuration.md is not what the code says: run make reference")
	}
}

func TestWriteOption(t *testing.T) {
	t.Parallel()
	const source = `package outbox

type RelayOptions struct {
	Lease time.Duration // time without a [Relay.Run]; default: 5 s, at most 1 h
	// Window limits a_b. It has a second sentence. Default: 8 MiB.
	Window int
	Next   *WriterOptions // of the next one
	Undo   func() // default: none. A nested saga undoes itself.
	Name   string // of the relay; required
	Lost   int
	hidden int
}
`
	parsed, err := parseFile("outbox/a.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	declared := publicStructs([]*file{parsed})["outbox.RelayOptions"]
	want := []string{
		"| `Lease` | `time.Duration` | 5 s, at most 1 h | Time without a `Relay.Run`. |\n",
		"| `Window` | `int` bytes | 8 MiB | Window limits a\\_b. |\n",
		"| `Next` | [`*WriterOptions`](#outboxwriteroptions) | its defaults | Of the next one. |\n",
		"| `Undo` | `func()` | none | A nested saga undoes itself. |\n",
		"| `Name` | `string` | required | Of the relay; required. |\n",
	}
	for i, field := range declared.fields.List {
		rows, wrong := writeOption("outbox.RelayOptions", field, declared.fset, []string{"outbox.WriterOptions"})
		switch name := field.Names[0].Name; {
		case name == "hidden" && (rows != "" || len(wrong) > 0):
			t.Errorf("a field that is not exported: %q, %q", rows, wrong)
		case name == "Lost" && (len(wrong) != 1 || !strings.Contains(wrong[0], "outbox.RelayOptions.Lost")):
			t.Errorf("a field without a comment: %q, want one message", wrong)
		case i < len(want) && (rows != want[i] || len(wrong) > 0):
			t.Errorf("got %q, %q; want %q", rows, wrong, want[i])
		}
	}
}
