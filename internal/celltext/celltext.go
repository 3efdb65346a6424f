// Package celltext formats text of unknown origin for a terminal: as a cell of a table, as a part of a sentence, as a
// word for a shell. Package operator and the command share it, so that both write a fact in the same words.
package celltext

import (
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sagamill/sagamill/internal/flow"
)

// FormatCell returns text of unknown origin as one cell of a table. It quotes s unless s is one word
// of visible characters. Quoting escapes control sequences, line breaks and marks that turn the
// direction of writing, so that a terminal does not obey them.
func FormatCell(s string) string {
	odd := func(r rune) bool { return !strconv.IsPrint(r) || unicode.IsSpace(r) || r == '"' || r == '\\' }
	if s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, odd) {
		return strconv.Quote(s)
	}
	return s
}

// ClipText shortens s to n characters.
func ClipText(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:n-1]) + "…"
}

// ClipStart shortens s to its last n characters.
func ClipStart(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return "…" + string(runes[len(runes)-n+1:])
}

// FormatCount returns n and things, in the singular if n is 1.
func FormatCount(n int, things string) string {
	if n == 1 {
		things = strings.TrimSuffix(things, "s")
	}
	return strconv.Itoa(n) + " " + things
}

// FormatTime returns t in UTC, to the second.
func FormatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// FormatMoment returns a time for JSON, to the microsecond, or "" for the zero time.
func FormatMoment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// QuoteWord returns s as one word for a shell. The line is meant to be pasted, and a key comes from
// clients.
func QuoteWord(s string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.,:/@+", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// FormatStep returns a step with the number of its message, if it has one.
func FormatStep(step, n string) string {
	if n == "" {
		return step
	}
	return step + "#" + n
}

// FormatAddress returns the address of an instance for people.
func FormatAddress(scope, key, path string) string {
	s := FormatCell(scope) + "/" + FormatCell(key)
	switch path {
	case "":
		return s
	case flow.Root(path):
		return s + ", path " + FormatCell(path)
	}
	return s + ", nested at " + FormatCell(path)
}
