package idemkey

import (
	"bytes"
	"mime/multipart"
	"net/http/httptest"
	"strings"
	"testing"
)

// sum is the fingerprint of a POST under the given options.
func sum(t testing.TB, o Options, target, contentType, body string) string {
	t.Helper()
	o.prepareLookups()
	r := httptest.NewRequest("POST", target, nil)
	r.Header.Set("Content-Type", contentType)
	fp, err := o.fingerprintOf(r, []byte(body))
	if err != nil || !strings.HasPrefix(fp.Alg, "v1") {
		t.Fatalf("fingerprint = %q, %v", fp.Alg, err)
	}
	return string(fp.Sum)
}

func form(t *testing.T, boundary, file, content string) (contentType, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if err := w.SetBoundary(boundary); err != nil {
		t.Fatal(err)
	}
	part, err := w.CreateFormFile("upload", file)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = part.Write([]byte(content))
	_ = w.WriteField("note", "hi")
	_ = w.Close()
	return w.FormDataContentType(), b.String()
}

// Which requests are the same and which are not.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	const js, urlencoded = "application/json", "application/x-www-form-urlencoded"
	deep := func(space string) string { return strings.Repeat("["+space, 600) + strings.Repeat("]", 600) }
	tests := []struct {
		name          string
		opts          Options
		typeA, a      string
		typeB, b      string
		same          bool
		queryA, query string
	}{
		{name: "json order and space", typeA: js, a: `{"a":1,"b":[1, {"d":null,"c":true}]}`, typeB: js + "; charset=utf-8", b: "{ \"b\":[1,{\"c\":true,\"d\":null}],\n\"a\":1}", same: true},
		{name: "json escapes", typeA: js, a: `{"a":"\u0041\/"}`, typeB: js, b: `{"\u0061":"A/"}`, same: true},
		{name: "json suffix", typeA: "application/x+json", a: `{"a":1}`, typeB: "application/x+json", b: ` {"a":1}`, same: true},
		{name: "number literals", typeA: js, a: `1`, typeB: js, b: `1.0`},
		{name: "beyond float64", typeA: js, a: `9007199254740993`, typeB: js, b: `9007199254740992`},
		{name: "array order", typeA: js, a: `[1,2]`, typeB: js, b: `[2,1]`},
		{name: "string is no number", typeA: js, a: `"1"`, typeB: js, b: `1`},
		{name: "duplicate names", typeA: js, a: `{"a":1,"a":2}`, typeB: js, b: `{"a":2,"a":1}`},
		{name: "half surrogates", typeA: js, a: `"\ud800"`, typeB: js, b: `"\ud801"`},
		{name: "invalid json", typeA: js, a: `{"a":1`, typeB: js, b: `{"a": 1`},
		{name: "deep json is raw", typeA: js, a: deep(""), typeB: js, b: deep(" ")},
		{name: "media type", typeA: js, a: `1`, typeB: "text/plain", b: `1`},
		{name: "plain text is raw", typeA: "text/plain", a: `{"a":1}`, typeB: "text/plain", b: `{"a": 1}`},
		{name: "form names sorted", typeA: urlencoded, a: "b=1&a=2", typeB: urlencoded, b: "a=%32&b=1", same: true},
		{name: "form values in order", typeA: urlencoded, a: "a=1&a=2", typeB: urlencoded, b: "a=2&a=1"},
		{name: "form boundaries", typeA: urlencoded, a: "a=b&c=d", typeB: urlencoded, b: "a=b%26c%3Dd"},
		{name: "query sorted", queryA: "?a=1&b=2", query: "?b=2&a=1", same: true},
		{name: "query values", queryA: "?a=1", query: "?a=2"},
		{name: "unreserved in path", queryA: "/a%7Eb%2d%41", query: "/a~b-A", same: true},
		{name: "case of escapes", queryA: "/a%2fb", query: "/a%2Fb", same: true},
		{name: "path", queryA: "a%2Fb", query: "a/b"},
		{name: "excluded", opts: Options{Fingerprint: FingerprintOptions{ExcludeFields: []string{"at", "$.meta.nonce"}}}, typeA: js, a: `{"at":1,"x":{"at":1},"meta":{"nonce":1,"k":1}}`, typeB: js, b: `{"x":{"at":1},"meta":{"k":1,"nonce":{"a":[]}},"at":{}}`, same: true},
		{name: "not excluded", opts: Options{Fingerprint: FingerprintOptions{ExcludeFields: []string{"at"}}}, typeA: js, a: `{"x":{"at":1}}`, typeB: js, b: `{"x":{"at":2}}`},
		{name: "raw", opts: Options{Fingerprint: FingerprintOptions{Raw: true}}, typeA: js, a: `{"a":1}`, typeB: js, b: `{"a": 1}`},
	}
	for _, tt := range tests {
		a := sum(t, tt.opts, "/orders"+tt.queryA, tt.typeA, tt.a)
		b := sum(t, tt.opts, "/orders"+tt.query, tt.typeB, tt.b)
		if (a == b) != tt.same {
			t.Errorf("%s: same = %t, want %t", tt.name, a == b, tt.same)
		}
	}
	if sum(t, Options{}, "/", js, "1") == sum(t, Options{Fingerprint: FingerprintOptions{Secret: []byte("s")}}, "/", js, "1") {
		t.Error("the secret does not matter")
	}
}

// A record that holds the path as it was spelled, as older processes store it, still matches.
func TestRecordsOfPathsAsSpelled(t *testing.T) {
	t.Parallel()
	o := &Options{}
	o.prepareLookups()
	claim := func(target string) *Claim {
		r := httptest.NewRequest("POST", target, nil)
		fp, err := o.fingerprintOf(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		return &Claim{FP: fp, Prior: o.current.fingerprintsAsSpelled(r, nil)}
	}
	old := o.current.digestPath("/a%7Eb", httptest.NewRequest("POST", "/a%7Eb", nil), nil)
	if !claim("/a%7Eb").matchesStored(old) {
		t.Error("a retry does not match the record of an older process")
	}
	if got := claim("/a~b").Prior; got != nil {
		t.Errorf("a path in its normal spelling has %d further fingerprints", len(got))
	}
}

func TestFingerprintMultipart(t *testing.T) {
	t.Parallel()
	of := func(boundary, file, content string) string {
		contentType, body := form(t, boundary, file, content)
		return sum(t, Options{}, "/", contentType, body)
	}
	first := of("one", "a.txt", "hello")
	if of("another", "a.txt", "hello") != first {
		t.Error("the boundary changes the fingerprint")
	}
	if of("one", "b.txt", "hello") == first || of("one", "a.txt", "hallo") == first {
		t.Error("file name or content do not change the fingerprint")
	}
	contentType, body := form(t, "one", "a.txt", "hello")
	if sum(t, Options{}, "/", contentType, body[:len(body)-10]) == first {
		t.Error("a truncated body has the fingerprint of the whole")
	}
}

// An encoded body and a chosen header count as they are.
func TestFingerprintHeaders(t *testing.T) {
	t.Parallel()
	o := Options{Fingerprint: FingerprintOptions{IncludeHeaders: []string{"Api-Version"}}}
	o.prepareLookups()
	of := func(header, value, body string) string {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(header, value)
		fp, err := o.fingerprintOf(r, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return string(fp.Sum)
	}
	if of("Api-Version", "1", "1") == of("Api-Version", "2", "1") {
		t.Error("an included header does not count")
	}
	if of("Cookie", "a", "1") != of("Cookie", "b", "1") {
		t.Error("a cookie counts")
	}
	if of("Content-Encoding", "gzip", "1") == of("Content-Encoding", "gzip", " 1") {
		t.Error("an encoded body was canonicalized")
	}
}

// Where a reader might see something else than the canonical form says.
func TestCanonicalRefuses(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"a":1,"a":1}`, `{"x":[{"a":1,"\u0061":1}]}`, `"\ud800"`, `"\ufffd"`, "\"\xff\"", `1 2`, ``, strings.Repeat("[", 514) + strings.Repeat("]", 514),
	} {
		if got, ok := canonicalJSON([]byte(body), fieldSet{}); ok {
			t.Errorf("canonical form of %q is %q, want none", body, got)
		}
	}
}
