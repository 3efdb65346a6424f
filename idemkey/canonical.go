package idemkey

import (
	"bytes"
	"cmp"
	"encoding/json"
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
	c.copyValue(c.tokens.Next(), fields.root(), 0)
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
		c.copyValue(token, at.element(), depth+1)
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
	to := c.fields.member(at, m.name)
	wanted := c.inside > 0 || c.fields.wanted(to)
	included := c.fields.include && to.named()
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
