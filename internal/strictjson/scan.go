package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"sync"
	"unicode"
	"unicode/utf8"
)

// indexFrom is how many names an object has before they are indexed: fewer are
// found sooner one by one.
const indexFrom = 32

// maxKept is the size of a message, in bytes, whose scanner is used again.
const maxKept = 16 << 10

// seed keeps senders from choosing names that share a hash.
var seed = maphash.MakeSeed()

// A scanner looks for duplicate names and for deep nesting, and takes for
// granted that data is JSON: of anything else it may report either or neither.
// That is enough because json.Unmarshal reads the same bytes to the end
// before it decodes any, and refuses what is not exactly one value.
type scanner struct {
	data     []byte
	pos      int
	open     []frame
	nameNext bool   // the innermost is an object, and its next string is a name
	names    []name // those of all open objects, the innermost's last
	folded   []byte // the text of names
}

// A frame is an open object or array.
type frame struct {
	object        bool
	names, folded int                 // where the object's own begin
	index         map[uint64]struct{} // hashes of its names; nil under indexFrom
}

// A name is a part of scanner.folded: decoded, and without letter case.
type name struct {
	hash       uint64
	start, end int
}

// scanners keep their slices from message to message.
var scanners = sync.Pool{New: func() any { return new(scanner) }}

func check(data []byte) error {
	s := scanners.Get().(*scanner)
	defer s.release()
	s.data = data
	for s.pos < len(data) {
		if err := s.token(); err != nil {
			return err
		}
	}
	return nil
}

// release leaves what a large message has grown to the garbage collector.
func (s *scanner) release() {
	if len(s.data) > maxKept {
		return
	}
	*s = scanner{open: s.open[:0], names: s.names[:0], folded: s.folded[:0]}
	scanners.Put(s)
}

// token passes over one byte or, where a string begins, over the string.
func (s *scanner) token() error {
	c := s.data[s.pos]
	s.pos++
	switch c {
	case '"':
		return s.str()
	case ',':
		s.nameNext = len(s.open) > 0 && s.open[len(s.open)-1].object
	case '{', '[':
		return s.push(c == '{')
	case '}', ']':
		s.pop()
	}
	return nil
}

func (s *scanner) push(object bool) error {
	if len(s.open) == MaxDepth {
		return fmt.Errorf("json: nested more than %d deep", MaxDepth)
	}
	s.open = append(s.open, frame{object: object, names: len(s.names), folded: len(s.folded)})
	s.nameNext = object
	return nil
}

func (s *scanner) pop() {
	s.nameNext = false
	if len(s.open) == 0 {
		return
	}
	top := s.open[len(s.open)-1]
	s.open = s.open[:len(s.open)-1]
	s.names, s.folded = s.names[:top.names], s.folded[:top.folded]
}

// str reads the string whose opening quote has been read.
func (s *scanner) str() error {
	start := s.pos
	s.skipString()
	if !s.nameNext {
		return nil
	}
	s.nameNext = false
	return s.name(s.data[start-1 : s.pos])
}

// skipString moves past the closing quote: the first that an even number of
// backslashes precedes, as each pair of them is one escaped backslash.
func (s *scanner) skipString() {
	start := s.pos
	for {
		n := bytes.IndexByte(s.data[s.pos:], '"')
		if n < 0 {
			s.pos = len(s.data)
			return
		}
		text := s.data[start : s.pos+n]
		s.pos += n + 1
		if slashes := len(text) - len(bytes.TrimRight(text, `\`)); slashes%2 == 0 {
			return
		}
	}
}

// name adds the quoted name to those of the innermost object.
func (s *scanner) name(quoted []byte) error {
	start := len(s.folded)
	if bytes.IndexByte(quoted, '\\') < 0 {
		s.folded = appendFolded(s.folded, bytes.Trim(quoted, `"`))
	} else {
		decoded, err := decode(quoted)
		if err != nil {
			return err
		}
		s.folded = appendFolded(s.folded, []byte(decoded))
	}
	n := name{maphash.Bytes(seed, s.folded[start:]), start, len(s.folded)}
	if s.given(n) {
		return duplicate(quoted)
	}
	s.names = append(s.names, n)
	return nil
}

// given tells whether the innermost object has a name like n. Two names can
// have one hash, so that it rules names out, but the text decides.
func (s *scanner) given(n name) bool {
	top := &s.open[len(s.open)-1]
	names := s.names[top.names:]
	if len(names) >= indexFrom && top.isNew(n, names) {
		return false
	}
	for _, other := range names {
		if other.hash == n.hash && bytes.Equal(s.folded[other.start:other.end], s.folded[n.start:n.end]) {
			return true
		}
	}
	return false
}

// isNew tells whether none of names, which are all of the frame's, has n's
// hash, and adds n to the index: without one, an object of many members would
// cost the square of their number.
func (f *frame) isNew(n name, names []name) bool {
	if f.index == nil {
		f.index = make(map[uint64]struct{}, 4*len(names))
		for _, other := range names {
			f.index[other.hash] = struct{}{}
		}
	}
	before := len(f.index)
	f.index[n.hash] = struct{}{}
	return len(f.index) > before
}

func duplicate(quoted []byte) error {
	decoded, err := decode(quoted)
	if err != nil {
		return err
	}
	return fmt.Errorf("json: member %.40q is given twice", decoded)
}

// decode leaves it to encoding/json what an escape means, lone surrogates and
// all: few senders escape anything in a name.
func decode(quoted []byte) (string, error) {
	var decoded string
	err := json.Unmarshal(quoted, &decoded)
	return decoded, prefixed(err)
}

// appendFolded appends text with each rune as the smallest of its cases and,
// as encoding/json does, each byte that is not UTF-8 as U+FFFD.
func appendFolded(to, text []byte) []byte {
	for len(text) > 0 {
		c, size := text[0], 1
		switch {
		case 'a' <= c && c <= 'z':
			to = append(to, c-('a'-'A'))
		case c < utf8.RuneSelf:
			to = append(to, c)
		default:
			var r rune
			r, size = utf8.DecodeRune(text)
			to = utf8.AppendRune(to, smallest(r))
		}
		text = text[size:]
	}
	return to
}

// smallest returns the least of the runes that equal r but for their case: to
// encoding/json, unlike to strings.ToLower, the long s and the Kelvin sign are
// cases of s and k.
func smallest(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}
