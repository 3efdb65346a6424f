package outbox

import (
	"fmt"
	"strconv"
	"strings"
)

// A snapshot says which transactions were over at one moment, as
// pg_current_snapshot does: those before xmax that are not in xip
// (https://www.postgresql.org/docs/current/functions-info.html).
type snapshot struct {
	text string // xmin:xmax:xip,xip,…
	xmax uint64
	xip  []string // in progress, all below xmax
}

// beginning is the snapshot in which nothing is visible.
var beginning = snapshot{text: "1:1:", xmax: 1}

func parseSnapshot(text string) (snapshot, error) {
	s := snapshot{text: text}
	xmin, rest, found := strings.Cut(text, ":")
	xmax, xip, foundToo := strings.Cut(rest, ":")
	low, err := strconv.ParseUint(xmin, 10, 64)
	if err == nil {
		s.xmax, err = strconv.ParseUint(xmax, 10, 64)
	}
	if err != nil || !found || !foundToo || low == 0 || s.xmax < low {
		return s, fmt.Errorf("outbox: %q is not a snapshot", text)
	}
	if xip == "" {
		return s, nil
	}
	s.xip = strings.Split(xip, ",")
	for _, x := range s.xip {
		n, err := strconv.ParseUint(x, 10, 64)
		if err != nil || n < low || n >= s.xmax {
			return s, fmt.Errorf("outbox: %q is not a snapshot", text)
		}
		low = n + 1 // they are in order
	}
	return s, nil
}

// before returns the snapshot in which no transaction is over that s does not
// know to be over with all that came before it.
func (s snapshot) before() snapshot {
	xmin, _, _ := strings.Cut(s.text, ":")
	n, _ := strconv.ParseUint(xmin, 10, 64) // s has been parsed
	return snapshot{text: xmin + ":" + xmin + ":", xmax: n}
}

func (s snapshot) xmaxText() string { return strconv.FormatUint(s.xmax, 10) }

// A cursor is a position in the log. Everything visible in from is dealt with,
// and of what is visible in to the ids up to last.
type cursor struct {
	from snapshot
	to   *snapshot // nil at the end of a difference
	last int64
}

// end is the position behind the difference that c is in.
func (c cursor) end() cursor {
	return cursor{from: *c.to}
}

// newest is the later of its snapshots.
func (c cursor) newest() snapshot {
	if c.to == nil {
		return c.from
	}
	return *c.to
}

func (c cursor) toText() *string {
	if c.to == nil {
		return nil
	}
	return &c.to.text
}
