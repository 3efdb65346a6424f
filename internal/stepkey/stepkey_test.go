package stepkey_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/stepkey"
)

// vectors are what every reader of step keys is held against, in any language.
type vectors struct {
	Valid []struct {
		Text string `json:"text"`
		Key  string `json:"key"`
		Step string `json:"step"`
		N    string `json:"n"`
	} `json:"valid"`
	Invalid []string `json:"invalid"`
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	text, err := os.ReadFile("testdata/stepkeys.json")
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil || len(v.Valid) == 0 || len(v.Invalid) == 0 {
		t.Fatalf("%d valid and %d invalid step keys (%v)", len(v.Valid), len(v.Invalid), err)
	}
	return v
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, v := range readVectors(t).Valid {
		want := stepkey.Key{Key: v.Key, Step: v.Step, N: v.N}
		got, err := stepkey.Parse(v.Text)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", v.Text, got, err, want)
		}
		if got.String() != v.Text {
			t.Errorf("Parse(%q).String() = %q", v.Text, got.String())
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, in := range append(readVectors(t).Invalid, "k\xff:pay") { // JSON has only text
		if got, err := stepkey.Parse(in); !errors.Is(err, stepkey.ErrMalformed) {
			t.Errorf("Parse(%q) = %+v, %v; want ErrMalformed", in, got, err)
		}
	}
}

func FuzzParseReversesString(f *testing.F) {
	f.Add("k", "pay", "1")
	f.Add("a:b#c", "0", "")
	f.Add("k:pay#1", "x", "y")
	f.Fuzz(func(t *testing.T, key, step, n string) {
		k := stepkey.Key{Key: key, Step: step, N: n}
		got, err := stepkey.Parse(k.String())
		if k.Check() == nil && (err != nil || got != k) {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", k.String(), got, err, k)
		}
		if err == nil && (len(got.Key) == 0 || len(got.Key) > stepkey.MaxKey || len(got.Step) == 0 || len(got.Step) > stepkey.MaxStep || len(got.N) > stepkey.MaxN) {
			t.Errorf("Parse(%q) = %+v, over the limits", k.String(), got)
		}
		if err == nil && got.String() != k.String() {
			t.Errorf("Parse(%q).String() = %q", k.String(), got.String())
		}
	})
}

func TestSplitN(t *testing.T) {
	t.Parallel()
	for _, v := range []struct{ n, incarnation, own string }{
		{"", "", ""}, {"7", "", "7"}, {"1.1", "", "1.1"}, {".8s0f", "8s0f", ""}, {".8s0f.7", "8s0f", "7"}, {".8s0f.1.1", "8s0f", "1.1"}, {".8s0f..7", "8s0f", ".7"},
		{".", "", "."}, {"..", "", ".."}, {"..7", "", "..7"}, {".7.", "", ".7."},
	} {
		incarnation, own := stepkey.SplitN(v.n)
		if incarnation != v.incarnation || own != v.own || stepkey.JoinN(incarnation, own) != v.n {
			t.Errorf("SplitN(%q) = %q, %q; want %q, %q", v.n, incarnation, own, v.incarnation, v.own)
		}
	}
	for _, bad := range []string{"", ".", "a.b", "a-b", "a b", "ä", strings.Repeat("x", stepkey.MaxIncarnation+1)} {
		if stepkey.CheckIncarnation(bad) == nil {
			t.Errorf("%q is an incarnation", bad)
		}
	}
}
