package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// cell makes text of unknown origin one cell of a table: quoted unless it is one
// word of visible characters. Escape sequences, line breaks and marks that turn
// the direction of writing are spelled out, so that a terminal obeys none of them.
func cell(s string) string {
	odd := func(r rune) bool { return !strconv.IsPrint(r) || unicode.IsSpace(r) || r == '"' || r == '\\' }
	if s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, odd) {
		return strconv.Quote(s)
	}
	return s
}

// clip shortens s to n characters.
func clip(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:n-1]) + "…"
}

// amount says how many, of what is called things if there are several.
func amount(n int, things string) string {
	if n == 1 {
		things = strings.TrimSuffix(things, "s")
	}
	return strconv.Itoa(n) + " " + things
}

// stamp is how times are printed.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// printTable prints rows under a header. The cells are clean.
func printTable(w io.Writer, header []string, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(header, "\t"))
	for _, row := range rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// printFields prints names with their values, a line each. The values are clean.
func printFields(w io.Writer, fields [][2]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range fields {
		fmt.Fprintf(table, "%s\t%s\n", f[0], f[1])
	}
	return table.Flush()
}

// printJSON prints v on a line.
func printJSON(w io.Writer, v any) error {
	encoded, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, visible(string(encoded)))
	return err
}

// visible spells out, as JSON does, what is not visible in s. JSON itself lets most
// of that pass.
func visible(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case strconv.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
