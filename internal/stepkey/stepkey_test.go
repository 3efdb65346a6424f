package stepkey_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/stepkey"
)

func TestParse(t *testing.T) {
	t.Parallel()
	longKey, longStep, longN := strings.Repeat("k", 255), strings.Repeat("s", 63), strings.Repeat("n", 32)
	for in, want := range map[string]stepkey.Key{
		"k:pay":                                {Key: "k", Step: "pay"},
		"a:b:c:pay":                            {Key: "a:b:c", Step: "pay"},
		"k#1:pay#2":                            {Key: "k#1", Step: "pay", N: "2"},
		"k:pay#A.b_c-9":                        {Key: "k", Step: "pay", N: "A.b_c-9"},
		":::0":                                 {Key: "::", Step: "0"},
		longKey + ":" + longStep + "#" + longN: {Key: longKey, Step: longStep, N: longN},
	} {
		got, err := stepkey.Parse(in)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", in, got, err, want)
		}
		if got.String() != in {
			t.Errorf("Parse(%q).String() = %q", in, got.String())
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", "k", ":pay", "k:", "k:Pay", "k:-pay", "k:pay#", "k:pay#a b", "k:pay#1#2", "k:p_y", "ü:pay", "k\x00:pay", "k\n:pay", "k\x7f:pay",
		strings.Repeat("k", 256) + ":pay", "k:" + strings.Repeat("s", 64), "k:pay#" + strings.Repeat("n", 33),
	} {
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
