package strictjson

import "testing"

// No input can be found whose hashes collide, so this makes one up.
func TestNamesOfOneHashAreToldApart(t *testing.T) {
	t.Parallel()
	for _, others := range []int{1, indexFrom, 2 * indexFrom} {
		s := scanner{open: []frame{{object: true}}, folded: []byte("AB")}
		for range others {
			s.names = append(s.names, name{hash: 1, start: 0, end: 1})
		}
		if s.hasName(name{hash: 1, start: 1, end: 2}) {
			t.Errorf("B is taken for one of %d A", others)
		}
		if !s.hasName(name{hash: 1, start: 0, end: 1}) {
			t.Errorf("A is not found among %d A", others)
		}
	}
}

// Not parallel, as allocations are counted for the process. One name that cost
// an allocation would make ten of them; the race detector drops a scanner of
// four, which costs fewer.
func TestCheckAllocatesNothingPerName(t *testing.T) {
	data := []byte(`{"id":1,"Größe":[{"x":"a\"b","y":1,"z":2}],"a":1,"b":2,"c":3,"d":4,"e":null}`)
	if n := testing.AllocsPerRun(1000, func() { _ = checkDocument(data) }); n > 4 {
		t.Errorf("checkDocument allocates %v times", n)
	}
}
