package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
)

// templateFuncs are the functions of all templates. What they return is escaped like any text.
var templateFuncs = template.FuncMap{
	"count": formatCount, "bytes": func(n any) string { return formatBytes(toInt64(n)) }, "lasted": formatDuration, "since": func(t time.Time) string { return formatAge(time.Since(t)) },
	"rfc3339": func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }, "utc": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"moment": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") },
	"text":   visibleText, "ordering": formatOrderingKey, "query": buildQuery, "plural": formatPlural, "lines": visibleLines, "dict": buildDict, "sides": func() []string { return []string{"inbox", "outbox"} },
}

// formatCount writes 1234567 as 1,234,567.
func formatCount(n any) string { // of any type of integers
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// formatPlural writes 1 saga and 2 sagas.
func formatPlural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return formatCount(n) + " " + many
}

// toInt64 converts an integer of a template.
func toInt64(n any) int64 {
	switch n := n.(type) {
	case int:
		return int64(n)
	case int64:
		return n
	}
	panic(fmt.Sprintf("console: %T is no count", n))
}

func formatBytes(n int64) string {
	const unit = 1024
	switch {
	case n < unit:
		return fmt.Sprintf("%d B", n)
	case n < unit*unit:
		return fmt.Sprintf("%.0f KiB", float64(n)/unit)
	case n < unit*unit*unit:
		return fmt.Sprintf("%.1f MiB", float64(n)/unit/unit)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/unit/unit/unit)
}

// formatDuration writes the two largest units of d.
func formatDuration(d time.Duration) string {
	switch d = max(0, d); {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
}

// formatAge writes the largest unit of d: people compare ages at a glance.
func formatAge(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d d", int(d.Hours())/24)
}

// visibleText replaces what does not show, or changes how the text around it shows, such as a mark of direction.
func visibleText(value any) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || unicode.IsGraphic(r) && !unicode.In(r, unicode.Cf, unicode.Zs, unicode.Zl, unicode.Zp) {
			return r
		}
		return unicode.ReplacementChar
	}, fmt.Sprint(value))
}

// maxIndented is the deepest nesting of JSON that a page indents. Each line begins with as many blanks, so that a deep
// payload of 64 KiB would become hundreds of megabytes.
const maxIndented = 32

// indentJSON returns JSON in lines. Other data, and JSON that is nested too deeply, it returns as they are.
func indentJSON(data []byte) []byte {
	depth, inText := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			if depth++; depth > maxIndented {
				return data
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	var lines bytes.Buffer
	if json.Indent(&lines, data, "", "  ") != nil {
		return data
	}
	return lines.Bytes()
}

// buildDict returns pairs of names and values as a map: a template takes one value.
func buildDict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("console: dict of %d values", len(pairs))
	}
	values := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		values[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return values, nil
}

// formatOrderingKey writes the parts of an ordering key, such as scope and key, with slashes between them.
func formatOrderingKey(key string) string {
	return visibleText(strings.ReplaceAll(key, "\x1f", " / "))
}

// buildQuery returns pairs of names and values as a query, without those whose value is empty. It begins with a question
// mark: html/template would escape what follows a mark in the template as one value.
func buildQuery(pairs ...any) (string, error) {
	if len(pairs)%2 != 0 {
		return "", fmt.Errorf("console: query of %d values", len(pairs))
	}
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" {
			values.Set(fmt.Sprint(pairs[i]), value)
		}
	}
	return "?" + values.Encode(), nil
}

// textFields are the conditions that a stored text has to equal. Such a text may begin or end with a blank.
var textFields = []string{"key", "scope", "topic", "type", "step", "name", "ordering", "correlation", "reason", "error", "by", "verb"}

// readFields sets each field to its value in the query. Only the conditions on texts keep the blanks around them.
func readFields(fields map[string]*string, values url.Values) {
	for name, field := range fields {
		if *field = values.Get(name); !slices.Contains(textFields, name) {
			*field = strings.TrimSpace(*field)
		}
	}
}

// listPadded returns the names of the conditions with a blank at an end, which a person cannot see.
func listPadded(fields map[string]*string) (names []string) {
	for _, name := range textFields {
		if field := fields[name]; field != nil && *field != strings.TrimSpace(*field) {
			names = append(names, name)
		}
	}
	return names
}

// queryFields returns the query that readFields reads. It leaves out empty fields.
func queryFields(fields map[string]*string) url.Values {
	values := url.Values{}
	for name, field := range fields {
		if *field != "" {
			values.Set(name, *field)
		}
	}
	return values
}
