package sagatest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// A timeline lists the events of a run, for people.
type timeline struct{ lines []string }

func (l *timeline) addLine(at time.Duration, what, format string, args ...any) {
	line := fmt.Sprintf("  %-9s %-10s %s", at, what, fmt.Sprintf(format, args...))
	l.lines = append(l.lines, strings.TrimRight(line, " "))
}

func (l *timeline) String() string { return strings.Join(l.lines, "\n") }

// maxBody is how many bytes of a body are shown.
const maxBody = 200

// showBody returns the beginning of a body, for people.
func showBody(body []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, body) != nil {
		b.Write(body)
	}
	text := b.String()
	switch {
	case text == "null", text == "":
		return ""
	case len(text) > maxBody:
		return " " + text[:maxBody] + "…"
	}
	return " " + text
}

// sameJSON reports whether two texts are the same JSON value.
func sameJSON(a, b []byte) bool {
	x, failedA := decodeValue(a)
	y, failedB := decodeValue(b)
	if failedA != nil || failedB != nil {
		return bytes.Equal(a, b)
	}
	return bytes.Equal(encodeJSON(x), encodeJSON(y)) // members are sorted
}

// decodeValue keeps numbers as they are written: a float is too small for some ids.
func decodeValue(data []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return v, d.Decode(&v)
}
