package idemkey

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxJSONDepth bounds the recursion of canonicalJSON. A deeper body is
// compared byte by byte.
const maxJSONDepth = 512

// canonicalJSON rewrites body so that what differs in spelling only comes out
// the same: no white space, members sorted by name, strings unescaped. Number
// literals stay as they are, since 1 and 1.0 may mean different things to the
// handler, and float64 would merge integers beyond 2^53.
//
// It is not ok where the result could merge bodies that a handler may tell
// apart: invalid JSON, duplicate names, text that is not Unicode, deep nesting.
// Members that fields does not want are left out.
func canonicalJSON(body []byte, fields fieldSet) ([]byte, bool) {
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, false
	}
	c := canonicalizer{in: body, out: make([]byte, 0, len(body)), fields: fields}
	c.value(fields.root(), 0)
	return c.out, !c.refused
}

// A canonicalizer copies one document from in to out, token by token. The
// document is known to be valid, so that a token's first byte says what it is.
// Once refused, what it writes no longer matters.
type canonicalizer struct {
	in      []byte // what is left
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

// peek returns the first byte of the next token.
func (c *canonicalizer) peek() byte {
	for i, b := range c.in {
		if b != ' ' && b != '\t' && b != '\n' && b != '\r' {
			c.in = c.in[i:]
			return b
		}
	}
	c.refused = true // not reached: the document is valid
	return 0
}

// skip passes over the next token, which is one byte.
func (c *canonicalizer) skip() {
	if c.peek(); !c.refused {
		c.in = c.in[1:]
	}
}

// more reports whether another element or member follows, past its comma. If
// not, it has passed over the end of the array or object.
func (c *canonicalizer) more(end byte) bool {
	b := c.peek()
	if c.refused {
		return false
	}
	if b == end || b == ',' {
		c.in = c.in[1:]
	}
	return b != end
}

func (c *canonicalizer) value(at fieldPlace, depth int) {
	if depth > maxJSONDepth {
		c.refused = true
	}
	b := c.peek()
	if c.refused {
		return
	}
	switch b {
	case '{':
		c.object(at, depth)
	case '[':
		c.array(at, depth)
	case '"':
		c.text()
	default: // a number or a word, as it is spelled
		n := bytes.IndexAny(c.in, " \t\n\r,]}")
		if n < 0 {
			n = len(c.in)
		}
		c.out = append(c.out, c.in[:n]...)
		c.in = c.in[n:]
	}
}

func (c *canonicalizer) array(at fieldPlace, depth int) {
	c.skip()
	c.out = append(c.out, '[')
	for first := true; c.more(']'); first = false {
		if !first {
			c.out = append(c.out, ',')
		}
		c.value(at.element(), depth+1)
	}
	c.out = append(c.out, ']')
}

func (c *canonicalizer) object(at fieldPlace, depth int) {
	c.skip()
	start, outer := len(c.out), len(c.members)
	for c.more('}') {
		c.peek()
		m := member{start: len(c.out)}
		m.name = c.text()
		c.skip()
		c.out = append(c.out, ':')
		to := c.fields.member(at, m.name)
		wanted := c.inside > 0 || c.fields.wanted(to)
		included := c.fields.include && to.named()
		if included {
			c.inside++
		}
		c.value(to, depth+1)
		if included {
			c.inside--
		}
		m.end = len(c.out)
		if !wanted {
			c.out = c.out[:m.start]
			continue
		}
		c.members = append(c.members, m)
	}
	c.sort(start, c.members[outer:])
	c.members = c.members[:outer]
}

// sort puts the members, which stand one after the other from start on, in the
// order of their names, with braces and commas.
func (c *canonicalizer) sort(start int, members []member) {
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	c.refused = c.refused || ambiguous(members)
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

// fewMembers are compared with each other, one by one.
const fewMembers = 16

// ambiguous reports two members of one name, or of names that differ in case
// only: which of them counts depends on the reader, and for some on their order.
func ambiguous(members []member) bool {
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

// text copies the string that comes next, with the fewest escapes, and returns
// what it says. JSON can spell what is not Unicode, such as half a surrogate
// pair, and readers turn it into U+FFFD: different strings become equal, so
// every string with that character is refused.
func (c *canonicalizer) text() string {
	n := 1
	for escaped := false; c.in[n] != '"' || escaped; n++ {
		escaped = c.in[n] == '\\' && !escaped
	}
	token := c.in[:n+1]
	c.in = c.in[n+1:]
	if bytes.ContainsRune(token, utf8.RuneError) {
		c.refused = true
	}
	if bytes.IndexByte(token, '\\') < 0 {
		c.out = append(c.out, token...)
		return string(token[1:n])
	}
	var said string
	if err := json.Unmarshal(token, &said); err != nil || strings.ContainsRune(said, utf8.RuneError) {
		c.refused = true
	}
	c.quote(said)
	return said
}

func (c *canonicalizer) quote(s string) {
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
