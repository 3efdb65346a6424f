package flow

import (
	"fmt"
	"strconv"
	"strings"
)

// N is what tells the messages of one attempt at one step from all others of the
// saga: the third part of a step key. The action and its compensation have the
// same one, since they are about the same row of the participant's inbox.
//
// Its numbers are to the base 36: there is little room in a step key.
func N(path string, step, attempt int) string {
	own := strconv.FormatInt(int64(step), base) + "." + strconv.FormatInt(int64(attempt), base)
	if path == "" {
		return own
	}
	return path + "-" + own
}

// MaxLevels is how deep sagas may be nested, the outermost counted: with more of
// them, N could become longer than a step key has room for.
const MaxLevels = 3

// An Address is what an N says.
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
	if i == 0 || !ok || !number(step, &a.Step) || !number(attempt, &a.Attempt) {
		return a, fmt.Errorf("%.40q does not name a step and an attempt", n)
	}
	return a, nil
}

const base = 36

// number accepts what [N] writes, and nothing else that ParseInt would.
func number(s string, into *int) bool {
	n, err := strconv.ParseInt(s, base, 32)
	*into = int(n)
	return err == nil && n > 0 && strconv.FormatInt(n, base) == s
}

// Within returns the path of an instance in the saga that an incarnation tells apart from
// others of its key. path is where it is nested, "" for the outermost.
func Within(incarnation, path string) string {
	switch {
	case incarnation == "":
		return path
	case path == "":
		return "." + incarnation
	}
	return "." + incarnation + "-" + path
}

// Incarnation reverses [Within], for a path or for what [N] makes of one.
func Incarnation(path string) (incarnation, rest string) {
	own, ok := strings.CutPrefix(path, ".")
	if !ok {
		return "", path
	}
	incarnation, rest, _ = strings.Cut(own, "-")
	return incarnation, rest
}

// Root is the path of the outermost instance around the one at path.
func Root(path string) string {
	incarnation, _ := Incarnation(path)
	return Within(incarnation, "")
}

// markSize is how many digits of an instance's id are the mark of its messages.
const markSize = 8

// Mark puts before an n of a message what tells it from those of all other
// instances: the end of the outermost one's id, which is random. Two services may run sagas
// with one request's key, and a key may be used again after a year; a participant that serves both must
// not take the step of one for that of the other, or undo it.
func Mark(root, n string) string { return MarkOf(root) + "-" + n }

// MarkOf is the mark of an outermost instance.
func MarkOf(root string) string { return root[max(0, len(root)-markSize):] }

// Unmark reverses [Mark].
func Unmark(marked string) (mark, n string, err error) {
	mark, n, ok := strings.Cut(marked, "-")
	if !ok || len(mark) != markSize {
		return "", "", fmt.Errorf("%.40q does not begin with the mark of an instance", marked)
	}
	return mark, n, nil
}

// The marks that a reply's N has behind that of the message that it answers.
const (
	doMark   = ".d"
	undoMark = ".u"
)

// ReplyN is the N of the reply to the message of an N. tell makes one reply differ from
// another to the same message: there is one answer of a handler, with "", but a
// command can fail several times, as often as a person has it tried again.
func ReplyN(n string, undo bool, tell string) string {
	if undo {
		return n + undoMark + tell
	}
	return n + doMark + tell
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
