package strictjson_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"
)

// roots are what names are made of: runes with up to three cases, runes that
// have none, what needs an escape, and what encoding/json replaces.
var roots = []string{"a", "A", "k", "K", "\u212a", "s", "S", "ſ", "σ", "ς", "Σ", "ß", "ẞ", "İ", "i", "ı", "ǅ", "Ǆ", "é", "𝄞", "𐐀", "𐐨", "\ufffd", "\xff", "\xed\xa0\x80", "\xc3", "\"", "\\", "/", "\n", "\x00", "{", "}", ",", ":", ""}

// A generator writes JSON that is now and then invalid, with names that often
// differ in nothing but how they are written.
type generator struct {
	*rand.Rand
	strings.Builder
	numbered bool // few names are alike, so that long objects can be valid
}

func generate(seed uint64) []byte {
	g := generator{Rand: rand.New(rand.NewPCG(seed, 0)), numbered: seed%2 == 0}
	for range g.deep() {
		g.WriteString([]string{`[`, `{"a":`}[g.IntN(2)])
	}
	prefix := g.String()
	g.value(3)
	for i := len(prefix) - 1; i >= 0; i-- {
		switch prefix[i] {
		case '[':
			g.WriteByte(']')
		case '{':
			g.WriteByte('}')
		}
	}
	return g.broken([]byte(g.String()))
}

// deep is mostly 0 and otherwise near the limit.
func (g *generator) deep() int {
	if g.IntN(8) > 0 {
		return 0
	}
	return 124 + g.IntN(6)
}

// broken changes one byte in one of four.
func (g *generator) broken(data []byte) []byte {
	i := g.IntN(len(data))
	switch g.IntN(12) {
	case 0:
		return data[:i]
	case 1:
		return append(data[:i], data[i+1:]...)
	case 2:
		data[i] = `{}[]",:\ 0u`[g.IntN(11)]
	}
	return data
}

func (g *generator) value(depth int) {
	kind := g.IntN(9)
	if depth == 0 {
		kind = g.IntN(5)
	}
	switch kind {
	case 0, 1:
		g.text()
	case 2, 3, 4:
		g.WriteString([]string{"0", "-1.5e-3", "12", "true", "false", "null"}[g.IntN(6)])
	case 5, 6:
		g.list(depth, '[', ']', func() {})
	default:
		g.list(depth, '{', '}', func() {
			g.text()
			g.space()
			g.WriteByte(':')
		})
	}
	g.space()
}

// list is sometimes longer than what is searched without an index.
func (g *generator) list(depth int, first, last byte, name func()) {
	n := g.IntN(5)
	if g.IntN(10) == 0 {
		n, depth = g.IntN(80), 1
	}
	g.WriteByte(first)
	for i := range n {
		if i > 0 {
			g.WriteByte(',')
		}
		g.space()
		name()
		g.space()
		g.value(depth - 1)
	}
	g.WriteByte(last)
}

func (g *generator) space() {
	if g.IntN(6) == 0 {
		g.WriteString([]string{" ", "\t\r\n", "  "}[g.IntN(3)])
	}
}

// text is one or two of the roots.
func (g *generator) text() {
	g.WriteByte('"')
	if g.numbered && g.IntN(200) > 0 {
		fmt.Fprint(&g.Builder, g.Uint32())
	}
	for range 1 + g.IntN(3)/2 {
		g.root(roots[g.IntN(len(roots))])
	}
	g.WriteByte('"')
}

func (g *generator) root(root string) {
	switch {
	case root == `"` || root == `\`:
		g.WriteString(`\` + root)
	case root == "/" && g.IntN(2) == 0:
		g.WriteString(`\/`)
	case root == "\n" || root == "\x00" || g.IntN(4) == 0:
		g.escaped(root)
	default:
		g.WriteString(root)
	}
}

// escaped writes root as UTF-16, of which it may leave out a half.
func (g *generator) escaped(root string) {
	for _, unit := range utf16.Encode([]rune(root)) {
		if utf16.IsSurrogate(rune(unit)) && g.IntN(4) == 0 {
			continue
		}
		fmt.Fprintf(&g.Builder, []string{`\u%04x`, `\u%04X`}[g.IntN(2)], unit)
	}
}

func TestUnmarshalDecidesLikeTheOracle(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		compare(t, generate(seed))
	}
}

func FuzzUnmarshalDecidesLikeTheOracle(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64) { compare(t, generate(seed)) })
}
