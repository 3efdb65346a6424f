package cli

import (
	"testing"
	"time"
)

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
	if got := ClipStart("äöüß", 3); got != "…üß" || ClipStart("äöü", 3) != "äöü" {
		t.Errorf("clip of the start = %q", got)
	}
}

// A line that is pasted into a shell runs nothing of the key.
func TestQuoteWord(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{"order-42": "order-42", "": "''", "a b": "'a b'", "$(id)": "'$(id)'", "o'dd": `'o'\''dd'`, "a;b": "'a;b'"} {
		if got := QuoteWord(s); got != want {
			t.Errorf("QuoteWord(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestFormatAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		1500 * time.Microsecond: "2ms", 1234 * time.Millisecond: "1.2s", 200*time.Second + 400*time.Millisecond: "3m20s",
		4*time.Hour + 10*time.Minute + 29*time.Second: "4h10m", 100 * time.Hour: "4d", 0: "0s",
	} {
		if got := FormatAge(d); got != want {
			t.Errorf("FormatAge(%d) = %s, want %s", d, got, want)
		}
	}
}
