package idemkey

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
)

// goldenJSON has a line for each body: the settings by name, the quoted body and its fingerprint, tabs
// in between. The first release of v1 made these sums. Retries meet records that hold them, so a line
// never changes and none is removed.
const goldenJSON = "testdata/fingerprints.golden"

// goldenSettings are the settings that goldenJSON names.
var goldenSettings = map[string]FingerprintOptions{
	"default": {},
	"exclude": {ExcludeFields: []string{"at", "a.b", `x["a.b"]`, "items[].ts", "[].id", "rows[][].k"}},
	"include": {IncludeFields: []string{"id", "a.b", `x["a.b"]`, "items[].ts", "[].id"}},
}

func TestGoldenJSON(t *testing.T) {
	t.Parallel()
	if os.Getenv("RECORD_GOLDEN") != "" {
		recordGoldenJSON(t)
	}
	data, err := os.ReadFile(goldenJSON)
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); lines++ {
		columns := strings.Split(s.Text(), "\t")
		if len(columns) != 3 {
			t.Fatalf("line %d has %d columns, want 3", lines+1, len(columns))
		}
		body, err := strconv.Unquote(columns[1])
		if err != nil {
			t.Fatalf("line %d: %v", lines+1, err)
		}
		if got := goldenSum(t, columns[0], body); got != columns[2] {
			t.Errorf("line %d, %s: %.200q has the fingerprint %s, want %s", lines+1, columns[0], body, got, columns[2])
		}
	}
	if lines < 500 {
		t.Errorf("%s has %d lines, want at least 500", goldenJSON, lines)
	}
}

func goldenSum(t *testing.T, settings, body string) string {
	t.Helper()
	fingerprint, known := goldenSettings[settings]
	if !known {
		t.Fatalf("no settings are called %q", settings)
	}
	o := &Options{Fingerprint: fingerprint}
	o.prepareLookups()
	r := httptest.NewRequest("POST", "/orders", nil)
	r.Header.Set("Content-Type", "application/json")
	fp, err := o.fingerprintOf(r, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(fp.Sum)
}

// recordGoldenJSON writes goldenJSON anew. It is for lines that are added.
func recordGoldenJSON(t *testing.T) {
	t.Helper()
	var out bytes.Buffer
	for _, body := range goldenBodies() {
		for _, settings := range []string{"default", "exclude", "include"} {
			fmt.Fprintf(&out, "%s\t%q\t%s\n", settings, body, goldenSum(t, settings, body))
		}
	}
	if err := os.WriteFile(goldenJSON, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// goldenBodies returns bodies that were chosen, and 150 random ones, half of them damaged.
func goldenBodies() []string {
	nested := func(open, inner, end string, depth int) string {
		return strings.Repeat(open, depth) + inner + strings.Repeat(end, depth)
	}
	bodies := []string{
		// white space, and nothing but white space
		"", " ", "\n", " \t\r\n 1 \t\r\n ", "{ }", "[ ]", "{\n}", "[\t[\r]\n]", "{ \"b\" : 1 ,\n\"a\"\t:\r[ 1 , 2 ] }", "\u00a01", "\ufeff{}", "\v1", "1\x00",
		// numbers, as they are spelled
		"0", "-0", "1", "1.0", "1e0", "1E0", "1e+0", "1e-0", "9007199254740993", "9007199254740992", "1e400", "-1e-400", "0.1000", strings.Repeat("9", 400), "01", "+1", "1.", ".5", "1e", "-", "0x1", "NaN", "1_000",
		// words
		"true", "false", "null", "True", "nul", "nulls", "truefalse", "true false",
		// strings and escapes
		`""`, `"a"`, `"\u0061"`, `"\/"`, `"/"`, `"\b\f\n\r\t"`, `"\u0008\u000c\u000A\u000d\u0009"`, `"\u0000\u001f\u007f"`, "\"\x7f\"", `"\\"`, `"\\\""`, `"\"`, `"\\\\"`, `"\x"`, `"\u12"`, `"\u12g4"`, "\"\t\"", "\"\n\"", `"a`, `"a\`,
		`"é"`, `"\u00e9"`, `"\u00E9"`, "\"e\u0301\"", "\"\u2028\u2029\"", `"\u2028<>&"`, `"\u003c\u003e\u0026"`,
		// what is not Unicode
		`"\ud83d\ude00"`, `"😀"`, `"\ud800"`, `"\udc00"`, `"\ud800\ud800"`, `"\udc00\ud800"`, `"\ud800a"`, `"\ud800\u0061"`, `"\ufffd"`, "\"\ufffd\"", "\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\xff", `{"\ud800":1}`, `{"a":"\ud800"}`,
		// members, their order and duplicates
		`{"b":1,"a":2}`, `{"a":2,"b":1}`, `{"a":1,"a":1}`, `{"a":1,"a":2}`, `{"a":1,"A":2}`, `{"a":1,"\u0061":2}`, `{"s":1,"ſ":2}`, `{"k":1,"K":2}`, `{"i":1,"İ":2}`, `{"ß":1,"ẞ":2}`, `{"σ":1,"ς":2,"Σ":3}`,
		`{"x":{"a":1,"a":2}}`, `[{"a":1,"a":2}]`, `{"a":{"a":{"a":1}}}`, `{"":1,"":2}`, `{"":{"":{}}}`, `{"é":1,"z":2,"e":3,"\u0000":4}`, `{"a\"b":1,"a\\b":2,"a/b":3}`,
		// invalid documents
		"{", "}", "[", "]", "{]", "[}", "[1,]", "[,1]", "[1 2]", "{,}", `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a" 1}`, `{a:1}`, `{1:1}`, `{"a":1}{"a":1}`, "1 2", "[1],", ",", ":", `"a""b"`, `{"a":1,"b"`, `{'a':1}`, "// x\n1", "[1]//",
		// depth, at the limit of 512 and over it
		nested("[", "", "]", 511), nested("[", "", "]", 512), nested("[", "", "]", 513), nested("[", "1", "]", 512), nested("[", "1", "]", 513), nested(`{"a":`, "1", "}", 512), nested(`{"a":`, "1", "}", 513), nested(`[{"a":`, "{}", "}]", 256),
		// paths of the settings
		`{"at":1,"id":2}`, `{"a":{"b":1,"c":2}}`, `{"a.b":1,"a":{"c":1}}`, `{"x":{"a.b":1,"a":{"b":2}}}`, `{"items":[{"ts":1,"n":2},{"ts":3}],"at":4}`, `[{"id":1,"at":2},{"id":3}]`, `{"rows":[[{"k":1,"v":2}],[]]}`, `{"":{"at":1}}`, `{"items":{"ts":1}}`, `{"items":[[{"ts":1}]],"id":[1,{"x":2}]}`, `{"at":1,"at":2}`, `{"at":{"a":1,"a":2}}`, `{"at":"\ud800","id":1}`, `{"id":{"at":[1,2,{"b":1,"a":2}]}}`,
	}
	for _, n := range []int{15, 16, 17, 18, 40} { // names are compared in another way beyond 16
		for _, last := range []string{`"last":0`, `"K":0`, `"k3":0`, `"K3":0`, `"İ":0,"i":0`, `"ſ":0,"s":0`, `"K":0,"k":0`} {
			members := ""
			for i := range n - 1 {
				members += fmt.Sprintf(`"k%d": %d,`, (i*7)%n, i)
			}
			bodies = append(bodies, "{"+members+last+"}")
		}
	}
	random := rand.New(rand.NewPCG(20, 5))
	for i := range 150 {
		body := randomJSON(random, 0)
		if i%2 == 1 {
			body = damage(random, body)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

func randomJSON(random *rand.Rand, depth int) string {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	space := pick("", "", "", " ", "\n", "\t ", "\r\n")
	kind := random.IntN(6)
	if depth > 4 {
		kind %= 3
	}
	switch kind {
	case 0:
		return space + pick("true", "false", "null", "0", "-1", "1.50", "2e10", "12345678901234567890") + space
	case 1, 2:
		return space + strconv.Quote(pick("", "a", "at", "é", "😀")+pick("", "/", "b", "x")) + space
	case 3:
		list := make([]string, random.IntN(5))
		for i := range list {
			list[i] = randomJSON(random, depth+1)
		}
		return space + "[" + strings.Join(list, ",") + space + "]"
	}
	members := make([]string, random.IntN(6))
	for i := range members {
		name := pick("a", "b", "at", "id", "x", "items", "rows", "ts", "k", `\u0061`, "a.b", "", "é", `\n`, `\ud83d\ude00`, "K", "zz") + pick("", "", strconv.Itoa(i))
		members[i] = space + `"` + name + `"` + space + ":" + randomJSON(random, depth+1)
	}
	return space + "{" + strings.Join(members, ",") + space + "}"
}

// damage replaces, removes or inserts a byte.
func damage(random *rand.Rand, body string) string {
	at := random.IntN(len(body))
	odd := string(`"\{}[],: 1a`[random.IntN(11)])
	switch random.IntN(3) {
	case 0:
		return body[:at] + odd + body[at+1:]
	case 1:
		return body[:at] + body[at+1:]
	}
	return body[:at] + odd + body[at:]
}
