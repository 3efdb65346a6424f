package cli

import "testing"

func TestCell(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": `""`, "order-1": "order-1", "tenant ü": `"tenant ü"`, "ü": "ü", `a"b`: `"a\"b"`, `a\n`: `"a\\n"`, "a\tb": `"a\tb"`, "\x1b[0m": `"\x1b[0m"`,
		"\u009b": `"\u009b"`, "\u202e": `"\u202e"`, "\xff": `"\xff"`,
	} {
		if got := FormatCell(in); got != want {
			t.Errorf("cell(%q) = %s, want %s", in, got, want)
		}
	}
	if got := ClipText("äöüß", 3); got != "äö…" || ClipText("äöü", 3) != "äöü" {
		t.Errorf("clip = %q", got)
	}
}
