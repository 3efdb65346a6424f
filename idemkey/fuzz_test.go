package idemkey

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A key that is accepted has a length and characters that a header, a log and a
// database can hold, and its two spellings are the same key.
func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{"k", `"k"`, `"a b";p=1;q="x"`, `"\"\\"`, "a,b", " k ", "", `"`, `""`, "\x00", "\xff", `"k";%"é"`, "k;p", `"abc";v=%"x"`, `";=";=`, "ä", `"\x"`, "\"a\x7f\"", "\"ä\""} {
		f.Add(seed)
	}
	o := &Options{SingleTenant: true}
	o.setDefaults()
	f.Fuzz(func(t *testing.T, value string) {
		sent, err := o.readKey(http.Header{DefaultHeader: {value}})
		if err != nil {
			if sent.key != "" && !errors.Is(err, errKeyInvalid) {
				t.Errorf("key %q with %v", sent.key, err)
			}
			return
		}
		if len(sent.key) < 1 || len(sent.key) > MaxKey || strings.ContainsFunc(sent.key, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
			t.Errorf("%q is accepted as %q", value, sent.key)
		}
		if strings.ContainsAny(sent.value, "\r\n\x00") {
			t.Errorf("%q would be echoed", sent.value)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(sent.key) + `"`
		if v := strings.Trim(value, " \t"); v[0] == '"' && !strings.HasPrefix(v, quoted) {
			t.Errorf("%q is accepted as %q, which is spelt %q", value, sent.key, quoted)
		}
		spellings := []string{quoted, " " + quoted + "\t", quoted + ";p", quoted + `; q="\\,";r=1`}
		if !strings.ContainsAny(sent.key, " \",;") {
			spellings = append(spellings, sent.key)
		}
		for _, spelling := range spellings {
			again, err := o.readKey(http.Header{DefaultHeader: {spelling}})
			if err != nil || again.key != sent.key {
				t.Errorf("%q is the key %q, and %q is %q, %v", value, sent.key, spelling, again.key, err)
			}
		}
	})
}

// What is canonical stays as it is, means the same, and does not depend on white
// space, escapes or the order of members.
func FuzzCanonicalJSON(f *testing.F) {
	for _, seed := range []string{
		`{"b":1,"a":[true,null,"é\u00e9\n"]}`, `{"a":1.0,"a":2}`, `9007199254740993`, `"\ud800"`, `[[[]]]`, `{"":{"":1e400}}`, "\xff", `{"a":"\u0000/\/"}`, ` [1 , 2] `,
		`{"b":1,"a":[1.0,"x",null,true,{}]}`, `"\u0000\ud83d\ude00"`, "\"\u2028\x7f\"", `[1,]`, `{"a":1}{`, `{"é":"\\\""}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		canonical, ok := canonicalJSON(body, fieldSet{})
		if !ok {
			return
		}
		if again, ok := canonicalJSON(canonical, fieldSet{}); !ok || !bytes.Equal(again, canonical) {
			t.Errorf("canonical %q becomes %q, %t", canonical, again, ok)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, body, " ", "\t"); err != nil {
			t.Fatalf("%q is not JSON: %v", body, err)
		}
		if again, ok := canonicalJSON(indented.Bytes(), fieldSet{}); !ok || !bytes.Equal(again, canonical) {
			t.Errorf("%q indented becomes %q, %t; want %q", body, again, ok, canonical)
		}
		before, after := decodeNumbers(t, body), decodeNumbers(t, canonical)
		if !reflect.DeepEqual(before, after) {
			t.Errorf("%q means something else than %q", body, canonical)
		}
		sorted, err := json.Marshal(before) // members by name, other escapes
		if err != nil {
			t.Fatal(err)
		}
		if again, ok := canonicalJSON(sorted, fieldSet{}); !ok || !bytes.Equal(again, canonical) {
			t.Errorf("%q becomes %q, %t; want %q", sorted, again, ok, canonical)
		}
	})
}

func decodeNumbers(t *testing.T, data []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	return v
}

// A request has one digest, whatever way an honest client spells it, and any
// other path, type or body has another one.
func FuzzFingerprint(f *testing.F) {
	f.Add("application/json", "a=1&b=2", []byte(`{"a":1,"b":[2]}`), []byte("x"))
	f.Add("application/x-www-form-urlencoded; charset=utf-8", "", []byte("b=2&a=1&b=%20"), []byte("&"))
	f.Add("multipart/form-data; boundary=frontier", "", []byte("--frontier\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--frontier--\r\n"), []byte("--frontier"))
	f.Add("text/plain", "%zz", []byte("raw"), []byte(""))
	f.Add("multipart/mixed", "a", []byte("x"), []byte(`"`))
	o := &Options{SingleTenant: true}
	o.setDefaults()
	o.prepareLookups()
	f.Fuzz(func(t *testing.T, contentType, query string, body, more []byte) {
		sum := func(contentType, query string, body []byte) []byte {
			r := httptest.NewRequest("POST", "/orders", nil)
			r.URL.RawQuery = query
			r.Header.Set("Content-Type", contentType)
			fp, err := o.fingerprintOf(r, body)
			if err != nil || len(fp.Sum) != 32 || fp.Alg != fingerprintV1 {
				t.Fatalf("fingerprint = %+v, %v", fp, err)
			}
			return fp.Sum
		}
		first := sum(contentType, query, body)
		if !bytes.Equal(first, sum(contentType, query, slices.Clone(body))) {
			t.Error("two digests of one request")
		}
		kind, digested := o.kindOf(contentType, body)
		if other := append(slices.Clone(body), more...); kind == "raw" && len(more) > 0 && bytes.Equal(first, sum(contentType, query, other)) {
			t.Errorf("%q and %q have one digest", body, other)
		}
		if spelt, ok := respell(kind, contentType, body); ok {
			if !bytes.Equal(first, sum(spelt.contentType, query, spelt.body)) {
				t.Errorf("%s: %q and %q have different digests (%x)", kind, body, spelt.body, digested)
			}
		}
		if bytes.Equal(first, sum(contentType+"x", query, body)) && !strings.ContainsAny(contentType, ";") {
			t.Errorf("type %q does not count", contentType)
		}
		if bytes.Equal(first, sum(contentType, query+"&more=1", body)) {
			t.Errorf("query %q does not count", query)
		}
	})
}

// kindOf returns how a body is read.
func (o *Options) kindOf(contentType string, body []byte) (string, []byte) {
	mediaType, params := parseMediaType(contentType)
	return o.current.digestBody(mediaType, params, "", body)
}

type spelling struct {
	contentType string
	body        []byte
}

// respell spells a body of some kind in another way of the same meaning.
func respell(kind, contentType string, body []byte) (spelling, bool) {
	switch kind {
	case "json":
		var out bytes.Buffer
		_ = json.Indent(&out, body, "", "  ")
		return spelling{contentType, out.Bytes()}, true
	case "form":
		pairs, _ := parsePairs(string(body))
		slices.SortStableFunc(pairs, func(a, b [2]string) int { return -strings.Compare(a[0], b[0]) })
		var out []string
		for _, p := range pairs {
			out = append(out, escape(p[0])+"="+escape(p[1]))
		}
		return spelling{contentType, []byte("&" + strings.Join(out, "&"))}, true
	case "multipart":
		mediaType, params := parseMediaType(contentType)
		return rebound(mediaType, params["boundary"], body)
	}
	return spelling{}, false
}

// escape writes every byte as %XX.
func escape(s string) string {
	const hex = "0123456789ABCDEF"
	var out strings.Builder
	for i := range len(s) {
		out.Write([]byte{'%', hex[s[i]>>4], hex[s[i]&15]})
	}
	return out.String()
}

// rebound sends the parts again under another boundary, as a retry does.
func rebound(mediaType, boundary string, body []byte) (spelling, bool) {
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	for {
		part, err := parts.NextRawPart()
		if err != nil {
			break
		}
		for name, values := range part.Header {
			if name == "" || strings.ContainsFunc(name+strings.Join(values, ""), func(r rune) bool { return r < 0x20 || r > 0x7e }) {
				return spelling{}, false // a writer would not send it
			}
		}
		p, err := w.CreatePart(part.Header)
		if err != nil {
			return spelling{}, false
		}
		var content bytes.Buffer
		if _, err := content.ReadFrom(part); err != nil {
			return spelling{}, false
		}
		_, _ = p.Write(content.Bytes())
	}
	if w.Close() != nil || out.Len() == 0 {
		return spelling{}, false
	}
	return spelling{mime.FormatMediaType(mediaType, map[string]string{"boundary": w.Boundary()}), out.Bytes()}, true
}
