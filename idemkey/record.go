package idemkey

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
)

// The limits of a stored header. A decoder without them could be made to
// allocate whatever a damaged length says.
const (
	MaxStoredNames  = 64       // header names in one response
	MaxStoredValues = 256      // values under one name
	MaxStoredHeader = 64 << 10 // bytes, encoded
)

// headerFormat is the first byte of an encoded header.
const headerFormat = 1

// MarshalHeader encodes r.Header for a store: names in order, values verbatim
// and one by one, commas included. It returns an error if a limit is exceeded.
func (r *Response) MarshalHeader() ([]byte, error) {
	out := []byte{headerFormat}
	out = binary.AppendUvarint(out, uint64(len(r.Header)))
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if !validName(name) || textproto.CanonicalMIMEHeaderKey(name) != name || !all(r.Header[name], validValue) {
			return nil, fmt.Errorf("idemkey: header %q has a name or a value that cannot be read back", name)
		}
		out = appendString(out, name)
		out = binary.AppendUvarint(out, uint64(len(r.Header[name])))
		for _, value := range r.Header[name] {
			out = appendString(out, value)
		}
		if len(r.Header[name]) > MaxStoredValues {
			return nil, fmt.Errorf("idemkey: header %s has %d values, the limit is %d", name, len(r.Header[name]), MaxStoredValues)
		}
	}
	if len(r.Header) > MaxStoredNames || len(out) > MaxStoredHeader {
		return nil, fmt.Errorf("idemkey: headers to keep: %d names and %d bytes, the limits are %d and %d",
			len(r.Header), len(out), MaxStoredNames, MaxStoredHeader)
	}
	return out, nil
}

func all(values []string, valid func(string) bool) bool {
	return !slices.ContainsFunc(values, func(s string) bool { return !valid(s) })
}

func appendString(out []byte, s string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(s))), s...)
}

// UnmarshalHeader sets r.Header from what MarshalHeader made and checks
// r.Status. Whatever could not have come from there is [ErrRecordCorrupt], and
// leaves r unchanged.
func (r *Response) UnmarshalHeader(data []byte) error {
	if r.Status < 200 || r.Status > 999 {
		return fmt.Errorf("%w: status %d", ErrRecordCorrupt, r.Status)
	}
	if len(data) == 0 || len(data) > MaxStoredHeader || data[0] != headerFormat {
		return fmt.Errorf("%w: %d header bytes of an unknown format", ErrRecordCorrupt, len(data))
	}
	d := headerDecoder{rest: data[1:]}
	header := d.header()
	if d.bad || len(d.rest) > 0 {
		return fmt.Errorf("%w: header cannot be decoded", ErrRecordCorrupt)
	}
	r.Header = header
	return nil
}

// A headerDecoder reads rest. Once bad it reads nothing more.
type headerDecoder struct {
	rest []byte
	bad  bool
}

func (d *headerDecoder) header() http.Header {
	names := d.count(MaxStoredNames)
	header := make(http.Header, names)
	last := ""
	for range names {
		name := d.text(validName)
		if name <= last || textproto.CanonicalMIMEHeaderKey(name) != name {
			d.bad = true // names are sorted and unique
		}
		values := make([]string, 0, 1)
		for range d.count(MaxStoredValues) {
			values = append(values, d.text(validValue))
		}
		if d.bad {
			return nil
		}
		header[name], last = values, name
	}
	return header
}

func (d *headerDecoder) count(limit uint64) int {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 || n > limit || d.bad {
		d.bad = true
		return 0
	}
	d.rest = d.rest[size:]
	return int(n)
}

func (d *headerDecoder) text(valid func(string) bool) string {
	n := d.count(MaxStoredHeader)
	if d.bad || n > len(d.rest) {
		d.bad = true
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	d.bad = !valid(s)
	return s
}

// validName reports whether s is an HTTP token.
func validName(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || slices.Contains([]byte(`"(),/:;<=>?@[\]{}`), c) {
			return false
		}
	}
	return s != ""
}

// validValue refuses what could end a header line.
func validValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
