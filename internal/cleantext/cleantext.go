// Package cleantext makes text of unknown origin fit for a Postgres text
// column and a log line.
package cleantext

import "strings"

// Clip returns at most limit bytes of s as UTF-8 without NUL, which PostgreSQL
// refuses.
func Clip(s string, limit int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\ufffd"), "\ufffd")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return s
}

// Printable reports whether s is UTF-8 without control characters.
func Printable(s string) bool {
	return strings.ToValidUTF8(s, "") == s && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}
