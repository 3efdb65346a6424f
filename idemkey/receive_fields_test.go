package idemkey

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// mustFields returns the set of the given paths.
func mustFields(t testing.TB, excluded, included []string) fieldSet {
	t.Helper()
	for _, path := range slices.Concat(excluded, included) {
		if _, err := parseFieldPath(path); err != nil {
			t.Fatalf("path %q: %v", path, err)
		}
	}
	return newFieldSet(excluded, included)
}

// Each spelling of a path, and what it names.
func TestFieldPaths(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"sentAt":               "sentAt",
		"$.meta.nonce":         "meta.nonce",
		"$x":                   "$x",
		`a\b."c"`:              `a\b."c"`,
		"items[].ts":           `["items"][]["ts"]`,
		"$.items[].ts":         `["items"][]["ts"]`,
		"$[].ts":               `[]["ts"]`,
		"[].ts":                `[]["ts"]`,
		"m[][].a.b":            `["m"][][]["a"]["b"]`,
		`["a.b"]`:              `["a.b"]`,
		`$["a.b"].c`:           `["a.b"]["c"]`,
		`a["[]"][]["\u0041]"]`: `["a"]["[]"][]["A]"]`,
		`a[""]`:                `["a"][""]`,
		`["\"]"]["\\"]`:        `["\"]"]["\\"]`,
	} {
		got, err := parseFieldPath(path)
		if err != nil || got.String() != want {
			t.Errorf("path %q = %s, %v; want %s", path, got, err, want)
		}
	}
	for path, want := range map[string]string{
		"":                "a name is missing",
		"$":               "a name is missing",
		"$.":              "a name is missing",
		"$..id":           "a name is missing",
		"a.":              "a name is missing",
		"a..b":            "a name is missing",
		".a":              "a name is missing",
		`a.["b"]`:         "a name is missing",
		"a[].":            "a name is missing",
		"a.[].b":          "a name is missing",
		"items[0].id":     `"[0]" is not supported`,
		"items[-1].id":    `"[-1]" is not supported`,
		"items[1:2].id":   `"[1:2]" is not supported`,
		"items[?(@.a)].b": `"[?(@.a)]" is not supported`,
		"$.items[*].id":   "write [] for each element",
		"items.*":         "* is not supported",
		"a*[].b":          "* is not supported",
		"['a'].b":         "double quotes",
		`["a`:             "not closed",
		"a[":              "not closed",
		`["a\"]`:          "not closed",
		`["\x"].a`:        "not a JSON string",
		`["\ud800"].a`:    "not Unicode",
		`["a"b].c`:        `"[\"a\"b]" is not supported`,
		"a]":              "] without [",
		"a].b[].c":        "] without [",
		"a[].b]":          "] without [",
		"items[]b":        "a dot is missing",
		`["a"]b`:          "a dot is missing",
		"items[]":         "names whole elements",
		"[]":              "names whole elements",
		"m[][]":           "names whole elements",
	} {
		got, err := parseFieldPath(path)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("path %q = %s, %v; want an error that says %q", path, got, err, want)
		}
	}
}

// What paths leave of a document.
func TestFields(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		excluded, included []string
		body, want         string
	}{
		{[]string{"payment.nonce"}, nil, `{"payment":{"nonce":1,"sum":2},"nonce":3}`, `{"nonce":3,"payment":{"sum":2}}`},
		{[]string{"items[].ts"}, nil, `{"items":[{"ts":1,"id":2},{"ts":3},4,[{"ts":5}]],"ts":6}`, `{"items":[{"id":2},{},4,[{"ts":5}]],"ts":6}`},
		{[]string{"items[].ts"}, nil, `{"items":{"ts":1}}`, `{"items":{"ts":1}}`},
		{[]string{"items.ts"}, nil, `{"items":[{"ts":1}]}`, `{"items":[{"ts":1}]}`},
		{[]string{"[].ts"}, nil, `[{"ts":1,"a":[{"ts":2}]}]`, `[{"a":[{"ts":2}]}]`},
		{[]string{"m[][].ts", "m[].id"}, nil, `{"m":[[{"ts":1,"id":2}],{"id":3,"ts":4}]}`, `{"m":[[{"id":2}],{"ts":4}]}`},
		{[]string{"a[].b[].c"}, nil, `{"a":[{"b":[{"c":1,"d":2}],"c":3}]}`, `{"a":[{"b":[{"d":2}],"c":3}]}`},
		{[]string{`["a.b"]`}, nil, `{"a.b":1,"a":{"b":2}}`, `{"a":{"b":2}}`},
		{[]string{`["a"]["b"]`}, nil, `{"a.b":1,"a":{"b":2}}`, `{"a":{},"a.b":1}`},
		{[]string{"a.b"}, nil, `{"a.b":1,"a":{"b":2}}`, `{"a":{}}`},
		{[]string{`x[]["a.b"]`}, nil, `{"x":[{"a.b":1,"a":{"b":2}}],"x[]":{"a.b":3}}`, `{"x":[{"a":{"b":2}}],"x[]":{"a.b":3}}`},
		{[]string{"a", `["a"]["b"]`}, nil, `{"a":{"b":1},"c":2}`, `{"c":2}`},
		{nil, []string{"items[].id", "at"}, `{"items":[{"id":1,"x":2},3],"at":{"x":1},"x":4}`, `{"at":{"x":1},"items":[{"id":1},3]}`},
		{nil, []string{"[].id"}, `[{"id":1,"x":2}]`, `[{"id":1}]`},
		{nil, []string{`["a.b"]`}, `{"a.b":1,"a":{"b":2}}`, `{"a.b":1}`},
	} {
		got, ok := canonicalJSON([]byte(tt.body), mustFields(t, tt.excluded, tt.included))
		if !ok || string(got) != tt.want {
			t.Errorf("%s without %q, with %q = %s, %t; want %s", tt.body, tt.excluded, tt.included, got, ok, tt.want)
		}
	}
}

// Any path is either refused with a reason, or read and spelled again as the same path.
func FuzzFieldPath(f *testing.F) {
	for _, seed := range []string{
		"sentAt", "$.meta.nonce", "items[].ts", `$["a.b"][].c`, "[][].x", `["\u0041\"]"]`, "a[0].b", "$..a", `["`, "a]b", "é[].ü", "a[].", "$", "$[", "\xff[].a", `["` + "\xff" + `"].a`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		p, err := parseFieldPath(path)
		if err != nil {
			if err.Error() == "" {
				t.Errorf("%q is refused without a reason", path)
			}
			return
		}
		if len(p.steps) == 0 || p.steps[len(p.steps)-1].element {
			t.Fatalf("%q names no member: %+v", path, p)
		}
		if before := strings.ContainsAny(path, "[]*"); before == p.joined {
			t.Errorf("%q: joined = %t", path, p.joined)
		}
		again, err := parseFieldPath(p.String())
		if err != nil || again.joined != p.joined || !slices.Equal(again.steps, p.steps) {
			t.Errorf("%q is spelled %q, which is %+v, %v; want %+v", path, p, again, err, p)
		}
		// A document of this member alone loses it, and keeps what is around.
		with, without := "1", "{}"
		for i, s := range slices.Backward(p.steps) {
			name, _ := json.Marshal(s.name)
			switch {
			case s.element:
				with, without = "["+with+"]", "["+without+"]"
			case i == len(p.steps)-1:
				with = "{" + string(name) + ":" + with + "}"
			default:
				with, without = "{"+string(name)+":"+with+"}", "{"+string(name)+":"+without+"}"
			}
		}
		full, ok := canonicalJSON([]byte(with), fieldSet{})
		if !ok {
			return // a name that no document may have
		}
		want, _ := canonicalJSON([]byte(without), fieldSet{})
		if rest, _ := canonicalJSON([]byte(with), newFieldSet([]string{path}, nil)); !bytes.Equal(rest, want) {
			t.Errorf("%q leaves %s of %s, want %s", path, rest, with, want)
		}
		if kept, _ := canonicalJSON([]byte(with), newFieldSet(nil, []string{path})); !bytes.Equal(kept, full) {
			t.Errorf("%q includes %s of %s", path, kept, with)
		}
	})
}

// randomNames are few, so that paths hit; some look like paths.
var randomNames = []string{"x", "y", "ts", "x.y", "y.ts", "", "[]", "$", "x[]", "."}

const randomDepth = 6 // at most

func randomDocument(r *rand.Rand, depth int) any {
	n := r.IntN(8)
	if depth == randomDepth {
		n = r.IntN(5)
	}
	switch {
	case n < 3 && depth > 0:
		doc := make(map[string]any)
		for range r.IntN(5) {
			doc[randomNames[r.IntN(len(randomNames))]] = randomDocument(r, depth-1)
		}
		return doc
	case n < 5 && depth > 0:
		doc := make([]any, r.IntN(4))
		for i := range doc {
			doc[i] = randomDocument(r, depth-1)
		}
		return doc
	case n == 5:
		return randomNames[r.IntN(len(randomNames))]
	case n == 6:
		return r.IntN(3) == 0
	}
	return json.Number(fmt.Sprintf("%d.%d", r.IntN(10), r.IntN(10)))
}

// A modelStep is a name, or each element of an array.
type modelStep struct {
	name    string
	element bool
}

// randomPath returns steps and one of their spellings. Without brackets the names are joined by dots.
func randomPath(r *rand.Rand) (steps []modelStep, joined string, path string) {
	if r.IntN(2) == 0 {
		path = []string{"x", "y", "ts"}[r.IntN(3)]
		for range r.IntN(3) {
			path += "." + []string{"x", "y", "ts"}[r.IntN(3)]
		}
		return nil, path, strings.Repeat("$.", r.IntN(2)) + path
	}
	for range r.IntN(4) {
		if r.IntN(2) == 0 {
			steps = append(steps, modelStep{element: true})
		} else {
			steps = append(steps, modelStep{name: randomNames[r.IntN(len(randomNames))]})
		}
	}
	steps = append(steps, modelStep{name: randomNames[r.IntN(len(randomNames))]})
	brackets := false
	for i, s := range steps {
		last := i == len(steps)-1
		switch {
		case s.element:
			path += "[]"
			brackets = true
		case s.name != "" && s.name != "$" && !strings.ContainsAny(s.name, ".[]") && r.IntN(2) == 0 && (brackets || !last):
			path += strings.Repeat(".", min(1, len(path))) + s.name
		default:
			name, _ := json.Marshal(s.name)
			path += "[" + string(name) + "]"
			brackets = true
		}
	}
	return steps, "", path
}

// removed is doc without what a path names, written without a look at the code that it is
// held against.
func removed(doc any, at string, steps []modelStep, joined string) any {
	switch doc := doc.(type) {
	case map[string]any:
		out := make(map[string]any)
		for name, value := range doc {
			if joined != "" {
				here := name
				if at != "" {
					here = at + "." + name
				}
				if here != joined {
					out[name] = removed(value, here, nil, joined)
				}
				continue
			}
			switch {
			case len(steps) == 0 || steps[0].element || steps[0].name != name:
				out[name] = value
			case len(steps) > 1:
				out[name] = removed(value, "", steps[1:], "")
			}
		}
		return out
	case []any:
		if len(steps) == 0 || !steps[0].element {
			return doc
		}
		out := make([]any, len(doc))
		for i := range doc {
			out[i] = removed(doc[i], "", steps[1:], "")
		}
		return out
	}
	return doc
}

// Excluding members means comparing the documents from which they were removed.
func TestExcludedIsRemoved(t *testing.T) {
	t.Parallel()
	hits := 0
	for seed := range uint64(5_000) {
		r := rand.New(rand.NewPCG(seed, 9))
		doc := randomDocument(r, randomDepth)
		without, excluded := doc, []string(nil)
		for range 1 + r.IntN(3) {
			steps, joined, path := randomPath(r)
			excluded, without = append(excluded, path), removed(without, "", steps, joined)
		}
		body, want := marshalIndented(t, doc), marshalIndented(t, without)
		if !bytes.Equal(body, want) {
			hits++
		}
		got, ok := canonicalJSON(body, mustFields(t, excluded, nil))
		canonical, ok2 := canonicalJSON(want, fieldSet{})
		if !ok || !ok2 || !bytes.Equal(got, canonical) {
			t.Fatalf("seed %d: %s without %q = %s, want %s", seed, body, excluded, got, canonical)
		}
	}
	if hits < 250 {
		t.Errorf("only %d documents had a member to remove", hits)
	}
}

// kept is doc without the members that no path leads to, through or into.
func kept(doc any, at []modelStep, touched func(at []modelStep) bool) any {
	switch doc := doc.(type) {
	case map[string]any:
		out := make(map[string]any)
		for name, value := range doc {
			if to := append(slices.Clone(at), modelStep{name: name}); touched(to) {
				out[name] = kept(value, to, touched)
			}
		}
		return out
	case []any:
		out := make([]any, len(doc))
		for i := range doc {
			out[i] = kept(doc[i], append(slices.Clone(at), modelStep{element: true}), touched)
		}
		return out
	}
	return doc
}

// touches reports whether a path and the place at are on one way.
func touches(at, steps []modelStep, joined string) bool {
	if joined == "" {
		n := min(len(at), len(steps))
		return slices.Equal(at[:n], steps[:n])
	}
	here := ""
	for i, s := range at {
		if s.element {
			return false
		}
		here += strings.Repeat(".", min(i, 1)) + s.name
		if here == joined {
			return true
		}
	}
	return strings.HasPrefix(joined, here+".")
}

// Including members means comparing the documents from which all else was removed.
func TestIncludedIsKept(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5_000) {
		r := rand.New(rand.NewPCG(seed, 10))
		doc := randomDocument(r, randomDepth)
		var included []string
		var tests []func(at []modelStep) bool
		for range 1 + r.IntN(3) {
			steps, joined, path := randomPath(r)
			included = append(included, path)
			tests = append(tests, func(at []modelStep) bool { return touches(at, steps, joined) })
		}
		with := kept(doc, nil, func(at []modelStep) bool {
			return slices.ContainsFunc(tests, func(touched func([]modelStep) bool) bool { return touched(at) })
		})
		body := marshalIndented(t, doc)
		got, ok := canonicalJSON(body, mustFields(t, nil, included))
		canonical, ok2 := canonicalJSON(marshalIndented(t, with), fieldSet{})
		if !ok || !ok2 || !bytes.Equal(got, canonical) {
			t.Fatalf("seed %d: %s with %q alone = %s, want %s", seed, body, included, got, canonical)
		}
	}
}

func marshalIndented(t *testing.T, doc any) []byte {
	t.Helper()
	out, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return out
}
