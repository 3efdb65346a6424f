package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/operator"
)

// A Listed is an entry of a list, with the target that has it.
type Listed[T any] struct {
	*Target
	Entry T
}

// ListedIn returns entries of one target.
func ListedIn[T any](t *Target, entries []T) []Listed[T] {
	all := make([]Listed[T], len(entries))
	for i := range entries {
		all[i] = Listed[T]{t, entries[i]}
	}
	return all
}

// A Place is the value of -after: the entry behind which a list begins, and the target that has it. The name is empty
// on a command line with one target.
type Place[P any] struct {
	Given bool
	Name  string
	Entry P
}

// AddLimitFlag adds the flag -limit of a list.
func (c *Call) AddLimitFlag() *int {
	return c.Flags.Int("limit", DefaultLimit, fmt.Sprintf("largest number of entries to print, at most %d; default: %d", operator.MaxList, DefaultLimit))
}

// CheckLimit returns an error unless a list may have so many entries.
func CheckLimit(limit int) error {
	if limit < 1 || limit > operator.MaxList {
		return fmt.Errorf("-limit must be between 1 and %d", operator.MaxList)
	}
	return nil
}

// AddAfterID adds the flag -after of a list that goes by ids.
func (c *Call) AddAfterID() *Place[int64] {
	p := &Place[int64]{}
	c.Flags.Func("after", "print only entries whose ids are larger than this id, to continue a list; with several schemas, write SCHEMA:ID", func(s string) (err error) {
		id := s
		if i := strings.LastIndexByte(s, ':'); i >= 0 {
			p.Name, id = s[:i], s[i+1:]
		}
		if p.Entry, err = strconv.ParseInt(id, 10, 64); err != nil || p.Entry < 0 {
			return errors.New("it must be an id, or SCHEMA:ID")
		}
		p.Given = true
		return nil
	})
	return p
}

// FormatPlace returns the value of -after for an entry of a target.
func (t *Targets) FormatPlace(of *Target, entry string) string {
	if !t.Several() {
		return entry
	}
	return of.Name + ":" + entry
}

// ListTargets reads at most limit entries, one target after the other, from a place on. list reads those of one target.
func ListTargets[T, P any](ctx context.Context, targets *Targets, from *Place[P], limit int, list func(ctx context.Context, t *Target, after P, limit int) ([]T, error)) (all []Listed[T], err error) {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	begin := 0
	if from.Given && (from.Name != "" || targets.Several()) {
		begin = slices.IndexFunc(targets.All, func(t *Target) bool { return t.Name == from.Name })
	}
	if begin < 0 {
		return nil, fmt.Errorf("-after must name one of %s, before a colon", JoinNames(targets.All))
	}
	for i := begin; i < len(targets.All) && len(all) < limit; i++ {
		t := targets.All[i]
		var after P
		if i == begin {
			after = from.Entry
		}
		page, err := list(ctx, t, after, limit-len(all))
		if err != nil {
			return nil, targets.nameTarget(t, err)
		}
		all = append(all, ListedIn(t, page)...)
	}
	return all, nil
}

// PrintListed prints a table. If there are several targets, its first column is the schema of each row.
func (t *Targets) PrintListed(c *Call, header []string, of []*Target, rows [][]string) error {
	if !t.Several() {
		return PrintTable(c.Stdout, header, rows)
	}
	for i := range rows {
		rows[i] = append([]string{of[i].Name}, rows[i]...)
	}
	return PrintTable(c.Stdout, append([]string{"SCHEMA"}, header...), rows)
}

// TargetsOf returns the target of each entry.
func TargetsOf[T any](all []Listed[T]) []*Target {
	targets := make([]*Target, len(all))
	for i := range all {
		targets[i] = all[i].Target
	}
	return targets
}

// Positions are ids by the name of a target: SCHEMA:ID,… on a command line, or one ID without a name.
type Positions map[string]int64

// String returns the text that Set reads.
func (p Positions) String() string {
	parts := make([]string, 0, len(p))
	for _, name := range slices.Sorted(maps.Keys(p)) {
		parts = append(parts, strings.TrimPrefix(name+":", ":")+strconv.FormatInt(p[name], 10))
	}
	return strings.Join(parts, ",")
}

// Set reads a flag.
func (p Positions) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		name, id := "", strings.TrimSpace(part)
		if i := strings.LastIndexByte(id, ':'); i >= 0 {
			name, id = id[:i], id[i+1:]
		}
		at, err := strconv.ParseInt(id, 10, 64)
		if err != nil || at < 0 {
			return errors.New("want SCHEMA:ID,…")
		}
		p[name] = at
	}
	return nil
}

// Assign gives an id without a name to the only target. Its error names an id of no target; flag has the ids.
func (p Positions) Assign(flag string, targets *Targets) error {
	if id, ok := p[""]; ok && !targets.Several() {
		delete(p, "")
		p[targets.All[0].Name] = id
	}
	for name := range p {
		if !slices.ContainsFunc(targets.All, func(t *Target) bool { return t.Name == name }) {
			return fmt.Errorf("-%s names %s, which -schema does not", flag, FormatCell(name))
		}
	}
	return nil
}
