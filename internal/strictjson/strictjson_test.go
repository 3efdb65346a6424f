package strictjson_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/strictjson"
)

func TestUnmarshalRefuses(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		``, ` `, `{`, `{"a":1`, `{"a":1}x`, `{"a":1}{}`, `1 2`, `{"a":1,"a":2}`, `{"amount":1,"AMOUNT":999}`, "{\"s\":1,\"\u017f\":2}",
		`{"x":[{"b":1,"c":2,"B":3}]}`, `{"a" 1}`, `nul`,
		strings.Repeat("[", 20_000), strings.Repeat("[", 129) + strings.Repeat("]", 129), strings.Repeat(`{"a":`, 129) + "1" + strings.Repeat("}", 129),
	} {
		var v any
		if err := strictjson.Unmarshal([]byte(in), &v); err == nil {
			t.Errorf("Unmarshal(%.60q) = %v, want an error", in, v)
		}
	}
}

func TestUnmarshalNamesTheMemberAndNothingElse(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 100_000)
	tests := []struct{ in, want string }{
		{`{"a":{"card":"4111"},"\u0041":"4112"}`, `json: member "A" is given twice`},
		{`{"` + long + `":1,"` + long + `":2}`, `json: member "` + long[:80] + `" is given twice`},
		{`[{"x":1},{"x":1,"y":[{"x":2}],"X":3}]`, `json: member "X" is given twice`},
		{strings.Repeat("[", 20_000), `json: nested more than 128 deep`},
		{"\ufeff{}", `json: it begins with a byte order mark, which the sender must leave out`},
		{`{"a":1} {`, `json: invalid character '{' after top-level value`},
		{`{"a\q":1}`, `json: invalid character 'q' in string escape code`},
		{``, `json: unexpected end of JSON input`},
	}
	for _, tt := range tests {
		into := "untouched"
		err := strictjson.Unmarshal([]byte(tt.in), &into)
		if err == nil || err.Error() != tt.want || into != "untouched" {
			t.Errorf("Unmarshal(%.60q) = %v, and into is %q; want %v", tt.in, err, into, tt.want)
		}
	}
}

// Nested and neighboring objects have names of their own, however many, also
// in a scanner that has read other messages before.
func TestUnmarshalAcceptsANameOncePerObject(t *testing.T) {
	t.Parallel()
	many := string(members(1000))
	for range 3 {
		for _, in := range []string{
			`[` + many + `,` + many + `]`,
			`{"a":` + many + `,"member1":` + many + `,"member2":2}`,
			strings.TrimSuffix(many, "}") + `,"a":` + many + `,"b":{"a":"a,a"}}`,
			`{"a":"a","b":["a","a",{"a":1}],"c":"\"a\":1,\"a\":1","d\\":"\\","e":"\\\""}`,
		} {
			var v any
			if err := strictjson.Unmarshal([]byte(in), &v); err != nil {
				t.Errorf("Unmarshal(%.60q): %v", in, err)
			}
		}
	}
}

func TestUnmarshalFindsADuplicateAmongMany(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 31, 32, 33, 34, 1000} {
		for _, again := range []int{0, n / 2, n - 1} {
			open := strings.TrimSuffix(string(members(n)), "}")
			in := fmt.Sprintf(`%s,"other":%s,"MEMBER%d":0}`, open, members(n), again)
			want := fmt.Sprintf(`json: member "MEMBER%d" is given twice`, again)
			if err := strictjson.Unmarshal([]byte(in), new(any)); err == nil || err.Error() != want {
				t.Errorf("Unmarshal of %d members = %v, want %s", n, err, want)
			}
		}
	}
}

func FuzzWhatIsAcceptedMeansTheSame(f *testing.F) {
	for _, seed := range []string{
		`{"a":{"a":[1,{"a":null}]},"b":"x"}`, `[]`, `"s"`, `1e400`, `[[[]],{}]`, `{"a":1,"A":2}`, `{"a":1,"\u0041":2}`, `{"\ud834\udd1e":1,"𝄞":2}`,
		"{\"K\":1,\"\u212a\":2}", "{\"\xff\":1,\"\ufffd\":2}", `{"\ud800":1,"\ufffd":2}`, `{"\\":"\\","\"":"\""}`, `{}"a"`, `{]"a","a"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(compare)
}

// compare fails t unless Unmarshal does with data what the oracle does. Where
// data is not JSON, either may name another of the reasons to refuse it.
func compare(t *testing.T, data []byte) {
	var got, want any
	err, wantErr := strictjson.Unmarshal(data, &got), oracle(data, &want)
	if (err == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want) {
		t.Fatalf("Unmarshal(%q) = %v, %v; want %v, %v", data, got, err, want, wantErr)
	}
	if json.Valid(data) && fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Fatalf("Unmarshal(%q) = %v, want %v", data, err, wantErr)
	}
	if err == nil && (json.Unmarshal(data, &want) != nil || !reflect.DeepEqual(got, want)) {
		t.Fatalf("accepted %q as %v; encoding/json says %v", data, got, want)
	}
}
