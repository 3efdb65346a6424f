package idemkey

import (
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

func TestHeaderRoundTrip(t *testing.T) {
	t.Parallel()
	for _, header := range []http.Header{
		{}, {"Location": {"/a"}}, {"Link": {"<a>, <b>", "<c>"}, "Content-Type": {}, "Vary": {""}, "X": {"\tä\xff"}},
	} {
		in, out := Response{Status: 200, Header: header}, Response{Status: 200}
		data, err := in.MarshalHeader()
		if err != nil {
			t.Fatalf("MarshalHeader: %v", err)
		}
		if err := out.UnmarshalHeader(data); err != nil || len(out.Header) != len(header) {
			t.Errorf("UnmarshalHeader = %v, %v; want %v", out.Header, err, header)
		}
		for name := range header {
			if strings.Join(out.Header[name], "|") != strings.Join(header[name], "|") {
				t.Errorf("%s = %q, want %q", name, out.Header[name], header[name])
			}
		}
	}
	big := Response{Status: 200, Header: http.Header{"X": {strings.Repeat("x", MaxStoredHeader)}}}
	if _, err := big.MarshalHeader(); err == nil {
		t.Error("MarshalHeader accepted too many bytes")
	}
}

func TestHeaderCorrupt(t *testing.T) {
	t.Parallel()
	for name, data := range map[string][]byte{
		"nothing": {}, "other format": {2, 0}, "cut off": {1, 1, 1}, "more than the count": {1, 0, 0}, "count over the limit": {1, 65},
		"name not canonical": {1, 1, 1, 'x', 0}, "name twice": {1, 2, 1, 'X', 0, 1, 'X', 0}, "names out of order": {1, 2, 1, 'Y', 0, 1, 'X', 0},
		"line break": {1, 1, 1, 'X', 1, 1, '\n'}, "no name": {1, 1, 0, 0},
	} {
		r := Response{Status: 200}
		if err := r.UnmarshalHeader(data); !errors.Is(err, ErrRecordCorrupt) || r.Header != nil {
			t.Errorf("%s: %v, %v; want ErrRecordCorrupt", name, r.Header, err)
		}
	}
}

// Whatever is not the work of MarshalHeader is corrupt, and never panics.
func FuzzUnmarshalHeader(f *testing.F) {
	valid, err := (&Response{Header: http.Header{"Link": {"<a>", "<b>"}, "Location": {"/"}}}).MarshalHeader()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{valid, valid[:len(valid)-1], append(valid, 0), {}, {1}, {1, 0}, {2, 0}, {1, 255, 255, 255, 255, 15},
		{1, 1, 1, 'x', 0}, {1, 1, 1, 'X', 1, 1, '\n'}, {1, 2, 1, 'X', 0, 1, 'X', 0}} {
		f.Add(200, seed)
	}
	f.Add(0, valid)
	f.Fuzz(func(t *testing.T, status int, data []byte) {
		r := Response{Status: status}
		if err := r.UnmarshalHeader(data); err != nil {
			if !errors.Is(err, ErrRecordCorrupt) || r.Header != nil {
				t.Errorf("error %v, header %v", err, r.Header)
			}
			return
		}
		if len(r.Header) > MaxStoredNames || len(data) > MaxStoredHeader || status < 200 || status > 999 {
			t.Errorf("%d names in %d bytes with status %d are accepted", len(r.Header), len(data), status)
		}
		for name, values := range r.Header {
			if len(values) > MaxStoredValues || strings.ContainsAny(name+strings.Join(values, ""), "\r\n\x00") {
				t.Errorf("%q: %d values %q are accepted", name, len(values), values)
			}
		}
		again, err := r.MarshalHeader()
		if err != nil {
			t.Fatalf("MarshalHeader: %v", err)
		}
		second := Response{Status: status}
		if err := second.UnmarshalHeader(again); err != nil || !reflect.DeepEqual(second, r) {
			t.Errorf("decoded %v, encoded and decoded again %v, %v", r.Header, second.Header, err)
		}
	})
}
