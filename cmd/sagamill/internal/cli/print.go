package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"

	"github.com/sagamill/sagamill/internal/celltext"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/operator"
)

// FormatAge returns how long something has lasted, as precisely as people need it: 1.2s, 3m20s, 4h10m, 3d.
func FormatAge(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 72*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + "d"
}

// These are of package celltext, which formats what operator says too.
var (
	FormatCell   = celltext.FormatCell
	ClipText     = celltext.ClipText
	ClipStart    = celltext.ClipStart
	FormatCount  = celltext.FormatCount
	FormatTime   = celltext.FormatTime
	FormatMoment = celltext.FormatMoment
	QuoteWord    = celltext.QuoteWord
)

// PrintTable prints rows under a header. The caller has made the cells with [FormatCell] or the like.
func PrintTable(w io.Writer, header []string, rows [][]string) error {
	return PrintRows(w, append([][]string{header}, rows...))
}

// PrintRows prints a table without a header.
func PrintRows(w io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// PrintFields prints names with their values, a line each. The caller has made the values with
// [FormatCell] or the like.
func PrintFields(w io.Writer, fields [][2]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range fields {
		fmt.Fprintf(table, "%s\t%s\n", f[0], f[1])
	}
	return table.Flush()
}

// PrintJSON prints v on a line.
func PrintJSON(w io.Writer, v any) error {
	encoded, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, EscapeText(string(encoded)))
	return err
}

// EscapeText replaces the invisible characters of s by JSON escapes. JSON itself leaves most of
// them as they are.
func EscapeText(s string) string {
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

// The sizes of what is printed.
const (
	DefaultLimit = 100 // lines of a list without -limit
	PreviewLimit = 20  // lines of a dry run
	ReasonWidth  = 100 // characters of an error in a table
)

// PrintCount prints how many messages were changed, or would be. label is that of a [Target], or "".
func (c *Call) PrintCount(label, did, to string, n int, asJSON bool) error {
	if asJSON {
		return PrintJSON(c.Stdout, struct {
			Schema string `json:"schema,omitempty"`
			Did    string `json:"did"`
			Count  int    `json:"count"`
		}{label, did, n})
	}
	_, err := fmt.Fprintf(c.Stdout, "%s %s\n", did, FormatCount(n, to))
	return err
}

// ProgressAfter is how long a redrive or a replay runs before it prints its progress.
const ProgressAfter = time.Second

// FormatStep returns the step of a dead letter, with the number of the message if it has one.
func FormatStep(l operator.DeadLetter) string { return celltext.FormatStep(l.Step, l.N) }

// SuggestKey adds a suggestion to err, which says that nothing is known of key. If key looks like the
// header of a message, which has the step too, it suggests the key without the step. That is a guess,
// because a key may have colons itself.
func SuggestKey(key string, err error) error {
	k, parseErr := stepkey.Parse(key)
	if parseErr != nil {
		return err
	}
	return fmt.Errorf("%w; the key is without the step: is it -key %s?", err, k.Key)
}
