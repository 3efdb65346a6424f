package flow

import (
	"fmt"
	"strconv"
	"strings"
)

// N numbers the messages of one attempt at one step, so that no other message of the saga has that number. It is the
// third part of a step key. The action and its compensation have the same N, since they share a row of the
// participant's inbox.
//
// Its numbers are to the base 36, because a step key is short.
func N(path string, step, attempt int) string {
	own := strconv.FormatInt(int64(step), base) + "." + strconv.FormatInt(int64(attempt), base)
	if path == "" {
		return own
	}
	return path + "-" + own
}

// MaxLevels is how deep sagas may be nested, the outermost counted. With more levels N could be too long for a step
// key.
const MaxLevels = 3

// An Address is the parts of an N.
type Address struct {
	Path          string
	Step, Attempt int
}

// ParseN reverses [N].
func ParseN(n string) (Address, error) {
	var a Address
	own := n
	i := strings.LastIndexByte(n, '-')
	if i > 0 {
		a.Path, own = n[:i], n[i+1:]
	}
	step, attempt, ok := strings.Cut(own, ".")
	if i == 0 || !ok || !parseNumber(step, &a.Step) || !parseNumber(attempt, &a.Attempt) {
		return a, fmt.Errorf("%.40q does not name a step and an attempt", n)
	}
	return a, nil
}

const base = 36

// parseNumber accepts a number as [N] writes it, and no other form that ParseInt accepts.
func parseNumber(s string, into *int) bool {
	n, err := strconv.ParseInt(s, base, 32)
	*into = int(n)
	return err == nil && n > 0 && strconv.FormatInt(n, base) == s
}

// Within returns the path of an instance in the saga of an incarnation. path is where it is nested, "" for the
// outermost.
func Within(incarnation, path string) string {
	switch {
	case incarnation == "":
		return path
	case path == "":
		return "." + incarnation
	}
	return "." + incarnation + "-" + path
}

// Incarnation reverses [Within], for a path or for an N with a path.
func Incarnation(path string) (incarnation, rest string) {
	own, ok := strings.CutPrefix(path, ".")
	if !ok {
		return "", path
	}
	incarnation, rest, _ = strings.Cut(own, "-")
	return incarnation, rest
}

// Root returns the path of the outermost instance around the one at path.
func Root(path string) string {
	incarnation, _ := Incarnation(path)
	return Within(incarnation, "")
}

// markSize is how many digits of an instance's id the mark has.
const markSize = 8

// Mark puts the mark of the outermost instance before an n. The mark is the end of its id, which is random. Two
// services may run sagas with the key of one request, and a key may be used again after a year. The mark keeps a
// participant of both from taking the step of one for that of the other, or undoing it.
func Mark(root, n string) string { return MarkOf(root) + "-" + n }

// MarkOf returns the mark of an outermost instance, by its id.
func MarkOf(root string) string { return root[max(0, len(root)-markSize):] }

// Unmark reverses [Mark].
func Unmark(marked string) (mark, n string, err error) {
	mark, n, ok := strings.Cut(marked, "-")
	if !ok || len(mark) != markSize {
		return "", "", fmt.Errorf("%.40q does not begin with the mark of an instance", marked)
	}
	return mark, n, nil
}

// A reply's N is that of the message that it answers, with one of these behind it.
const (
	doMark   = ".d"
	undoMark = ".u"
)

// ReplyN returns the N of the reply to a message. A handler replies once, with the suffix "". But a command can fail
// several times, as often as a person redrives it: each failure has its own suffix.
func ReplyN(n string, undo bool, suffix string) string {
	if undo {
		return n + undoMark + suffix
	}
	return n + doMark + suffix
}

// ParseReplyN reverses [ReplyN].
func ParseReplyN(n string) (to Address, undo bool, err error) {
	i := max(strings.LastIndex(n, doMark), strings.LastIndex(n, undoMark))
	if i < 0 {
		return to, false, fmt.Errorf("%.40q is not that of a reply", n)
	}
	to, err = ParseN(n[:i])
	return to, strings.HasPrefix(n[i:], undoMark), err
}
