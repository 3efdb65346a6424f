package sagatest

import (
	"hash/maphash"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type branch struct {
	name   string
	leaves []int
	next   *branch
}

type forest struct {
	trees  map[string]*branch
	first  *branch
	any    any
	at     time.Time
	grid   [2][]string
	byTree map[branchKey]int
	none   []int
	noMap  map[string]int
}

type branchKey struct{ a, b string }

func plant() *forest {
	b := &branch{name: "oak", leaves: []int{1, 2}}
	b.next = b // a ring
	return &forest{
		trees: map[string]*branch{"oak": b}, first: b, any: map[string][]int{"x": {1}}, at: time.Unix(1, 0),
		grid: [2][]string{{"a"}, {"b"}}, byTree: map[branchKey]int{{"a", "b"}: 1}, noMap: nil,
	}
}

func sum(seed maphash.Seed, f *forest) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	digestValue(&h, reflect.ValueOf(f), 0)
	return h.Sum64()
}

func TestDeepCopySharesNothing(t *testing.T) {
	t.Parallel()
	f, seed := plant(), maphash.MakeSeed()
	c, _ := deepCopy(f)
	if diff := cmp.Diff(f.grid, c.grid); diff != "" || c.first.next != c.first || c.trees["oak"] != c.first || c.at != f.at || c.none != nil || c.noMap != nil {
		t.Fatalf("the copy is another: %s", diff)
	}
	if sum(seed, f) != sum(seed, c) {
		t.Fatal("the copy has another digest")
	}
	before := sum(seed, f)
	for name, change := range map[string]func(f *forest){
		"slice":     func(f *forest) { f.first.leaves[0] = 7 },
		"map":       func(f *forest) { f.trees["elm"] = nil },
		"map in it": func(f *forest) { f.any.(map[string][]int)["x"][0] = 7 },
		"pointer":   func(f *forest) { f.first.name = "elm" },
		"array":     func(f *forest) { f.grid[1][0] = "c" },
		"time":      func(f *forest) { f.at = f.at.Add(time.Second) },
		"key":       func(f *forest) { f.byTree[branchKey{"c", "d"}] = 1 },
	} {
		c, _ := deepCopy(f)
		change(c)
		if sum(seed, c) == before {
			t.Errorf("%s: the digest has not changed", name)
		}
		if sum(seed, f) != before {
			t.Errorf("%s: what was copied has changed", name)
		}
	}
}
