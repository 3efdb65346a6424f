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

// indexFrom is the number of names from which on an object has an index. Comparing fewer one by one is faster.
const indexFrom = 32

// maxKept is the size of a message, in bytes, whose scanner is used again.
const maxKept = 16 << 10

// seed keeps senders from choosing names that share a hash.
var seed = maphash.MakeSeed()

// A scanner looks for duplicate names and for deep nesting. It takes for granted that its data is JSON:
// of anything else it may report either or neither. That is enough, because json.Unmarshal reads the same
// bytes to the end before it decodes any, and refuses everything but exactly one value.
type scanner struct {
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

// checkDocument returns an error if an object in data has a name twice, or if data is nested over MaxDepth.
func checkDocument(data []byte) error {
	s := scanners.Get().(*scanner)
	defer s.release(len(data))
	tokens := NewTokenizer(data)
	for token := tokens.Next(); len(token) > 0; token = tokens.Next() {
		if err := s.readToken(token); err != nil {
			return err
		}
	}
	return nil
}

// release gives s back to the pool, unless the message was large: its slices would stay in memory.
func (s *scanner) release(size int) {
	if size > maxKept {
		return
	}
	*s = scanner{open: s.open[:0], names: s.names[:0], folded: s.folded[:0]}
	scanners.Put(s)
}

func (s *scanner) readToken(token []byte) error {
	switch c := token[0]; c {
	case '"':
		if !s.nameNext {
			return nil
		}
		s.nameNext = false
		return s.addName(token)
	case ',':
		s.nameNext = len(s.open) > 0 && s.open[len(s.open)-1].object
	case '{', '[':
		return s.openFrame(c == '{')
	case '}', ']':
		s.closeFrame()
	}
	return nil
}

func (s *scanner) openFrame(object bool) error {
	if len(s.open) == MaxDepth {
		return fmt.Errorf("json: nested more than %d deep", MaxDepth)
	}
	s.open = append(s.open, frame{object: object, names: len(s.names), folded: len(s.folded)})
	s.nameNext = object
	return nil
}

func (s *scanner) closeFrame() {
	s.nameNext = false
	if len(s.open) == 0 {
		return
	}
	top := s.open[len(s.open)-1]
	s.open = s.open[:len(s.open)-1]
	s.names, s.folded = s.names[:top.names], s.folded[:top.folded]
}

// addName adds the quoted name to those of the innermost object.
func (s *scanner) addName(quoted []byte) error {
	start := len(s.folded)
	if bytes.IndexByte(quoted, '\\') < 0 {
		s.folded = appendFolded(s.folded, bytes.Trim(quoted, `"`))
	} else {
		decoded, err := decodeString(quoted)
		if err != nil {
			return err
		}
		s.folded = appendFolded(s.folded, []byte(decoded))
	}
	n := name{maphash.Bytes(seed, s.folded[start:]), start, len(s.folded)}
	if s.hasName(n) {
		return duplicateError(quoted)
	}
	s.names = append(s.names, n)
	return nil
}

// hasName reports whether the innermost object has a name like n. Two names can have one hash: a hash
// rules names out, and the text decides.
func (s *scanner) hasName(n name) bool {
	top := &s.open[len(s.open)-1]
	names := s.names[top.names:]
	if len(names) >= indexFrom && top.addHash(n, names) {
		return false
	}
	for _, other := range names {
		if other.hash == n.hash && bytes.Equal(s.folded[other.start:other.end], s.folded[n.start:n.end]) {
			return true
		}
	}
	return false
}

// addHash adds n's hash to the index, and reports whether none of names, which are all of the frame's,
// has it. Without an index, an object of many members would cost the square of their number.
func (f *frame) addHash(n name, names []name) bool {
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

func duplicateError(quoted []byte) error {
	decoded, err := decodeString(quoted)
	if err != nil {
		return err
	}
	return fmt.Errorf("json: member %.40q is given twice", decoded)
}

// decodeString leaves the meaning of escapes, lone surrogates included, to encoding/json. It may be slow:
// few senders escape anything in a name.
func decodeString(quoted []byte) (string, error) {
	var decoded string
	err := json.Unmarshal(quoted, &decoded)
	return decoded, prefixSyntaxError(err)
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
			to = utf8.AppendRune(to, smallestCase(r))
		}
		text = text[size:]
	}
	return to
}

// smallestCase returns the least of the runes that differ from r in case only. Like encoding/json, and
// unlike strings.ToLower, it takes the long s and the Kelvin sign for cases of s and k.
func smallestCase(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}
