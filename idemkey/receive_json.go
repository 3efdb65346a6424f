package idemkey

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sagamill/sagamill/internal/strictjson"
)

// maxJSONDepth bounds the recursion of canonicalJSON. A deeper body is compared byte by byte.
const maxJSONDepth = 512

// canonicalJSON rewrites body so that documents which differ in spelling only become equal: no white
// space, members sorted by name, strings unescaped. Number literals stay as they are: 1 and 1.0 may mean
// different things to the handler, and float64 would merge integers beyond 2^53.
//
// It is not ok where the result could merge bodies that a handler may tell apart: invalid JSON, duplicate
// names, text that is not Unicode, deep nesting. Members that fields does not want are left out.
func canonicalJSON(body []byte, fields fieldSet) ([]byte, bool) {
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, false
	}
	c := canonicalizer{tokens: strictjson.NewTokenizer(body), out: make([]byte, 0, len(body)), fields: fields}
	c.copyValue(c.tokens.Next(), fields.rootPlace(), 0)
	return c.out, !c.refused
}

// A canonicalizer copies one document to out, token by token. The document is known to be valid, so a
// token's first byte says what it is, and no token is missing. Once the document is refused, out no longer
// matters.
type canonicalizer struct {
	tokens  strictjson.Tokenizer
	out     []byte
	scratch []byte
	members []member // of the objects that are open, the innermost last
	fields  fieldSet
	inside  int // how many included members this is within
	refused bool
}

// A member is out[start:end], which begins with the quoted name.
type member struct {
	name       string
	start, end int
}

// nextItem returns the first token of the next element or member, past its comma. It is not ok at the end
// of the array or object, which it moves past.
func (c *canonicalizer) nextItem() (token []byte, ok bool) {
	token = c.tokens.Next()
	if token[0] == ',' {
		token = c.tokens.Next()
	}
	return token, token[0] != ']' && token[0] != '}'
}

// copyValue copies the value that begins with token.
func (c *canonicalizer) copyValue(token []byte, at fieldPlace, depth int) {
	if depth > maxJSONDepth {
		c.refused = true
	}
	if c.refused {
		return
	}
	switch token[0] {
	case '{':
		c.copyObject(at, depth)
	case '[':
		c.copyArray(at, depth)
	case '"':
		c.copyString(token)
	default: // a number or a word, as it is spelled
		c.out = append(c.out, token...)
	}
}

func (c *canonicalizer) copyArray(at fieldPlace, depth int) {
	c.out = append(c.out, '[')
	for first := true; !c.refused; first = false {
		token, ok := c.nextItem()
		if !ok {
			break
		}
		if !first {
			c.out = append(c.out, ',')
		}
		c.copyValue(token, at.elementPlace(), depth+1)
	}
	c.out = append(c.out, ']')
}

func (c *canonicalizer) copyObject(at fieldPlace, depth int) {
	start, outer := len(c.out), len(c.members)
	for !c.refused {
		token, ok := c.nextItem()
		if !ok {
			break
		}
		c.copyMember(token, at, depth)
	}
	c.sortMembers(start, c.members[outer:])
	c.members = c.members[:outer]
}

// copyMember copies the member whose quoted name is token, unless it does not count.
func (c *canonicalizer) copyMember(token []byte, at fieldPlace, depth int) {
	m := member{start: len(c.out)}
	m.name = c.copyString(token)
	c.tokens.Next() // the colon
	c.out = append(c.out, ':')
	to := c.fields.memberPlace(at, m.name)
	wanted := c.inside > 0 || c.fields.wantsMember(to)
	included := c.fields.include && to.endsPath()
	if included {
		c.inside++
	}
	c.copyValue(c.tokens.Next(), to, depth+1)
	if included {
		c.inside--
	}
	m.end = len(c.out)
	if !wanted {
		c.out = c.out[:m.start]
		return
	}
	c.members = append(c.members, m)
}

// sortMembers puts the members, which stand one after the other from start on, in the order of their
// names, with braces and commas.
func (c *canonicalizer) sortMembers(start int, members []member) {
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	c.refused = c.refused || ambiguousNames(members)
	c.scratch = append(c.scratch[:0], '{')
	for i, m := range members {
		if i > 0 {
			c.scratch = append(c.scratch, ',')
		}
		c.scratch = append(c.scratch, c.out[m.start:m.end]...)
	}
	c.out = append(c.out[:start], c.scratch...)
	c.out = append(c.out, '}')
}

// fewMembers is the number of members up to which names are compared one by one, without a map.
const fewMembers = 16

// ambiguousNames reports two members of one name, or of names that differ in case only: readers disagree
// which of them counts. Package strictjson compares names in another way, which differs for İ among more
// than 16 members. Sums in records depend on this one, so it stays.
func ambiguousNames(members []member) bool {
	if len(members) > fewMembers {
		seen := make(map[string]bool, len(members))
		for _, m := range members {
			name := strings.ToLower(strings.ToUpper(m.name))
			if seen[name] {
				return true
			}
			seen[name] = true
		}
		return false
	}
	for i := range members {
		for j := range i {
			if strings.EqualFold(members[i].name, members[j].name) {
				return true
			}
		}
	}
	return false
}

// copyString copies a quoted string with the fewest escapes, and returns its text. JSON can spell text that
// is not Unicode, such as half a surrogate pair, and readers turn it into U+FFFD: different strings become
// equal. So every string with that character is refused.
func (c *canonicalizer) copyString(token []byte) string {
	if bytes.ContainsRune(token, utf8.RuneError) {
		c.refused = true
	}
	if bytes.IndexByte(token, '\\') < 0 {
		c.out = append(c.out, token...)
		return string(token[1 : len(token)-1])
	}
	var text string
	if err := json.Unmarshal(token, &text); err != nil || strings.ContainsRune(text, utf8.RuneError) {
		c.refused = true
	}
	c.appendQuoted(text)
	return text
}

func (c *canonicalizer) appendQuoted(s string) {
	const hex = "0123456789abcdef"
	c.out = append(c.out, '"')
	for i := range len(s) {
		switch b := s[i]; {
		case b == '"' || b == '\\':
			c.out = append(c.out, '\\', b)
		case b < 0x20:
			c.out = append(c.out, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
		default:
			c.out = append(c.out, b)
		}
	}
	c.out = append(c.out, '"')
}

// A fieldPath is the way from a document's root to a member. [FingerprintOptions] has its spelling.
type fieldPath struct {
	steps []fieldStep
	// joined is a path without brackets. It is compared with the names joined by dots, so that
	// a.b is also a member called "a.b". Records hold fingerprints that were made so.
	joined bool
}

// A fieldStep goes to one member of an object, or to each element of an array.
type fieldStep struct {
	name    string
	element bool
}

// String spells all paths to the same members, by the same rule, in the same way.
func (p fieldPath) String() string {
	var out strings.Builder
	for i, s := range p.steps {
		switch {
		case s.element:
			out.WriteString("[]")
		case p.joined:
			out.WriteString(strings.Repeat(".", min(1, i)) + s.name)
		default:
			name, _ := json.Marshal(s.name) // a string can always be marshalled
			out.WriteString("[" + string(name) + "]")
		}
	}
	return out.String()
}

// Errors of a path.
var (
	errNoName   = errors.New(`a name is missing; the name "" is spelled [""], and descent (..) is not supported`)
	errNoMember = errors.New("it names whole elements: name the array itself, or a member of its elements")
	errNoDot    = errors.New("a dot is missing after the bracket")
	errOpen     = errors.New("a bracket is not closed")
	errClose    = errors.New("] without [; in a name it is spelled as in [\"a]\"]")
	errStar     = errors.New(`* is not supported; in a name it is spelled as in ["a*"]`)
	errElements = errors.New("[*] is not supported: write [] for each element")
	errQuotes   = errors.New("a name in brackets takes double quotes")
	errString   = errors.New("a name in brackets is not a JSON string")
	errUnicode  = errors.New("a name is not Unicode")
)

// parseFieldPath reads a path as [FingerprintOptions] spells it. Its error names the mistake, or the feature
// that is not supported.
func parseFieldPath(path string) (fieldPath, error) {
	if !strings.ContainsAny(path, "[]") {
		return parseJoinedPath(path)
	}
	if !utf8.ValidString(path) || strings.ContainsRune(path, utf8.RuneError) {
		return fieldPath{}, errUnicode
	}
	var p fieldPath
	rest := path
	if strings.HasPrefix(rest, "$.") || strings.HasPrefix(rest, "$[") {
		rest = rest[1:]
	} else if rest[0] != '[' {
		rest = "." + rest
	}
	for rest != "" {
		read := parseBracket
		if rest[0] == '.' {
			read = parseDotName
		}
		step, n, err := read(rest)
		if err != nil {
			return fieldPath{}, err
		}
		p.steps, rest = append(p.steps, step), rest[n:]
	}
	if p.steps[len(p.steps)-1].element {
		return fieldPath{}, errNoMember
	}
	return p, nil
}

func parseJoinedPath(path string) (fieldPath, error) {
	p := fieldPath{joined: true}
	for name := range strings.SplitSeq(strings.TrimPrefix(path, "$."), ".") {
		switch {
		case name == "" || path == "$":
			return fieldPath{}, errNoName
		case strings.Contains(name, "*"):
			return fieldPath{}, errStar
		}
		p.steps = append(p.steps, fieldStep{name: name})
	}
	return p, nil
}

// parseDotName reads a dot and a name without brackets, and returns the length of both.
func parseDotName(path string) (fieldStep, int, error) {
	n := strings.IndexAny(path[1:], ".[]") + 1
	if n == 0 {
		n = len(path)
	}
	switch {
	case n == 1:
		return fieldStep{}, 0, errNoName
	case strings.Contains(path[:n], "*"):
		return fieldStep{}, 0, errStar
	}
	return fieldStep{name: path[1:n]}, n, nil
}

// parseBracket reads [] or ["name"], and returns its length.
func parseBracket(path string) (fieldStep, int, error) {
	switch {
	case path[0] == ']':
		return fieldStep{}, 0, errClose
	case path[0] != '[':
		return fieldStep{}, 0, errNoDot
	case strings.HasPrefix(path, "[]"):
		return fieldStep{element: true}, 2, nil
	case strings.HasPrefix(path, "[*]"):
		return fieldStep{}, 0, errElements
	case strings.HasPrefix(path, "['"):
		return fieldStep{}, 0, errQuotes
	case strings.HasPrefix(path, `["`):
		return parseQuoted(path)
	}
	inside, _, closed := strings.Cut(path, "]")
	if !closed {
		return fieldStep{}, 0, errOpen
	}
	return fieldStep{}, 0, fmt.Errorf("%q is not supported: write [] for each element, or a name in double quotes", inside+"]")
}

func parseQuoted(path string) (fieldStep, int, error) {
	n := 2
	for escaped := false; n < len(path) && (path[n] != '"' || escaped); n++ {
		escaped = path[n] == '\\' && !escaped
	}
	if n+1 >= len(path) {
		return fieldStep{}, 0, errOpen
	}
	if path[n+1] != ']' {
		inside, _, _ := strings.Cut(path, "]")
		return fieldStep{}, 0, fmt.Errorf("%q is not supported: a quote in a name is spelled \\\"", inside+"]")
	}
	var name string
	if json.Unmarshal([]byte(path[1:n+1]), &name) != nil {
		return fieldStep{}, 0, errString
	}
	if strings.ContainsRune(name, utf8.RuneError) {
		return fieldStep{}, 0, errUnicode // no document with such a name is taken apart
	}
	return fieldStep{name: name}, n + 2, nil
}

// A fieldNode is a place in documents that paths lead through, or to.
type fieldNode struct {
	members  map[string]*fieldNode
	elements *fieldNode
	end      bool // a path leads to it
}

// addStep returns the node that step leads to.
func (n *fieldNode) addStep(step fieldStep) *fieldNode {
	if step.element {
		if n.elements == nil {
			n.elements = &fieldNode{}
		}
		return n.elements
	}
	if n.members == nil {
		n.members = make(map[string]*fieldNode)
	}
	if n.members[step.name] == nil {
		n.members[step.name] = &fieldNode{}
	}
	return n.members[step.name]
}

// A fieldSet says which members count. In the zero value all do.
type fieldSet struct {
	joined, exact *fieldNode // the roots of the paths without brackets, and of those with them
	include       bool       // only what the paths name counts; otherwise only the rest
}

// newFieldSet takes paths that parseFieldPath accepts, in one of the two lists.
func newFieldSet(excluded, included []string) fieldSet {
	s := fieldSet{include: len(included) > 0}
	for _, path := range slices.Concat(excluded, included) {
		p, _ := parseFieldPath(path)
		root := &s.exact
		if p.joined {
			root = &s.joined
		}
		if *root == nil {
			*root = &fieldNode{}
		}
		at := *root
		for _, step := range p.steps {
			at = at.addStep(step)
		}
		at.end = true
	}
	return s
}

// A fieldPlace is where a value is, as far as a fieldSet's paths lead. The zero value is beside
// all paths.
type fieldPlace struct{ joined, exact *fieldNode }

func (s *fieldSet) rootPlace() fieldPlace { return fieldPlace{s.joined, s.exact} }

// memberPlace returns the place of the member called name.
func (s *fieldSet) memberPlace(at fieldPlace, name string) (to fieldPlace) {
	if at.exact != nil {
		to.exact = at.exact.members[name]
	}
	if at.joined != nil && name == "" && at.joined == s.joined && !s.include {
		to.joined = at.joined // joined, its members' names are those of the root's
	} else if at.joined != nil {
		to.joined = at.joined.joinedMember(name)
	}
	return to
}

// joinedMember follows each part of a name that has dots.
func (n *fieldNode) joinedMember(name string) *fieldNode {
	for part := range strings.SplitSeq(name, ".") {
		if n = n.members[part]; n == nil {
			return nil
		}
	}
	return n
}

// elementPlace returns the place of an array's elements. No path without brackets leads there.
func (p fieldPlace) elementPlace() fieldPlace {
	if p.exact == nil {
		return fieldPlace{}
	}
	return fieldPlace{exact: p.exact.elements}
}

// endsPath reports whether a path leads to this place, and not only through it.
func (p fieldPlace) endsPath() bool {
	return p.joined != nil && p.joined.end || p.exact != nil && p.exact.end
}

// wantsMember reports whether a member counts, or may have members that do.
func (s *fieldSet) wantsMember(at fieldPlace) bool {
	if s.include {
		return at != fieldPlace{}
	}
	return !at.endsPath()
}
