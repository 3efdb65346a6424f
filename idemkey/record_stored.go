package idemkey

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
)

// A Sealer encrypts the bodies of stored responses. Headers and status stay
// readable: stores and operators need them. aad holds the record's identity and
// fingerprint algorithm, and must be authenticated: a body that was copied to
// another record must not open.
type Sealer interface {
	// Seal returns the sealed body and the name of the key, not empty, that opens it.
	Seal(body, aad []byte) (sealed []byte, keyID string, err error)
	// Open returns the body that was sealed with the key called keyID.
	Open(sealed, aad []byte, keyID string) ([]byte, error)
}

// An AEADSealer is a [Sealer] with keys in memory. To rotate, add a key to
// Keys everywhere, then name it in Current, and drop the old one a TTL later.
type AEADSealer struct {
	Current string // seals
	Keys    map[string]cipher.AEAD
}

// Seal puts a random nonce in front of the sealed body.
func (s *AEADSealer) Seal(body, aad []byte) ([]byte, string, error) {
	key := s.Keys[s.Current]
	if key == nil || s.Current == "" {
		return nil, "", errors.New("idemkey: AEADSealer.Current names no key")
	}
	nonce := make([]byte, key.NonceSize(), key.NonceSize()+len(body)+key.Overhead())
	rand.Read(nonce) // never fails
	return key.Seal(nonce, nonce, body, aad), s.Current, nil
}

// Open reverses Seal.
func (s *AEADSealer) Open(sealed, aad []byte, keyID string) ([]byte, error) {
	key := s.Keys[keyID]
	if key == nil {
		return nil, errors.New("idemkey: no key of that name")
	}
	if len(sealed) < key.NonceSize() {
		return nil, errors.New("idemkey: sealed body is too short")
	}
	return key.Open(nil, sealed[:key.NonceSize()], sealed[key.NonceSize():], aad)
}

// sealedData binds a sealed body to its record. Each part has its length in front, so that no two
// identities have the same data.
func sealedData(id Identity, alg string) []byte {
	var out []byte
	for _, part := range []string{"idemkey body 1", id.Namespace, id.Scope, id.Key, alg} {
		out = appendString(out, part)
	}
	return out
}

// prepareStored returns what the store is to keep of r, and leaves r as it is. Where the headers cannot be
// stored it is a tombstone, since a replay must have them. An error is the Sealer's, and the result is then
// a tombstone too.
func (c *recorder) prepareStored(r *Response) (Response, error) {
	s, unkept, err := c.m.opts.storedForm(c.r, c.claim.ID, c.claim.FP.Alg, r)
	c.event.Oversize = c.event.Oversize || unkept != nil
	c.noteError(unkept)
	c.noteError(err)
	return s, err
}

// storedForm is prepareStored for the record of id. unkept is why it is a tombstone although nothing has failed.
func (o *Options) storedForm(req *http.Request, id Identity, alg string, r *Response) (s Response, unkept, err error) {
	s = r.cloneResponse()
	if o.Response.Redact != nil {
		o.Response.Redact(req, &s)
		head := req.Method == http.MethodHead
		maps.DeleteFunc(s.Header, func(name string, _ []string) bool { return neverStored(name) && !(head && name == contentLength) })
	}
	if o.Response.NoStoreBody {
		s.Body, s.Dropped = nil, true
	}
	if _, unkept = s.MarshalHeader(); unkept != nil { // no reason to fail, or to run again
		s.Header, s.Body, s.Dropped = nil, nil, true
	}
	if o.Response.Sealer == nil || s.Dropped {
		return s, unkept, nil
	}
	sealed, keyID, err := o.Response.Sealer.Seal(s.Body, sealedData(id, alg))
	if err == nil && keyID == "" {
		err = errors.New("idemkey: Sealer gave no key id")
	}
	if err != nil {
		s.Body, s.Dropped = nil, true
		return s, nil, fmt.Errorf("idemkey: seal response: %w", err)
	}
	s.Body, s.KeyID = sealed, keyID
	return s, nil, nil
}

// openStored returns the response of rec as it was before it was sealed.
func (a answerer) openStored(rec *Record) (Response, error) {
	r := rec.Response
	if r.KeyID == "" {
		return r.cloneResponse(), nil // from before there was a Sealer
	}
	if a.m.opts.Response.Sealer == nil {
		return r, fmt.Errorf("%w: sealed, and there is no Sealer", ErrRecordCorrupt)
	}
	body, err := a.m.opts.Response.Sealer.Open(slices.Clone(r.Body), sealedData(a.claim.ID, rec.FP.Alg), r.KeyID)
	if err != nil {
		return r, fmt.Errorf("%w: open: %w", ErrRecordCorrupt, err)
	}
	opened := r.cloneResponse()
	opened.Body, opened.KeyID = body, ""
	return opened, nil
}

// storedHeaders are the response headers that describe the stored content, or that its status needs.
var storedHeaders = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location", "Location",
	"Etag", "Last-Modified", "Link", "Cache-Control", "Vary", "Deprecation", "Sunset", "Allow", "Retry-After",
}

// neverStored reports that the header called name belongs to one exchange or one caller. To replay it would
// hand out credentials or break the connection.
func neverStored(name string) bool {
	switch name = http.CanonicalHeaderKey(name); name {
	case "Set-Cookie", "Set-Cookie2", "Authorization", "Authentication-Info", "Www-Authenticate", "Connection", "Keep-Alive", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Content-Length", "Date", "Server", "Alt-Svc":
		return true
	}
	return len(name) >= 6 && name[:6] == "Proxy-"
}

// The limits of a stored header. Without them, a damaged length could make the decoder
// allocate any amount.
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
		if !validName(name) || textproto.CanonicalMIMEHeaderKey(name) != name || !allValid(r.Header[name], validValue) {
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

func allValid(values []string, valid func(string) bool) bool {
	return !slices.ContainsFunc(values, func(s string) bool { return !valid(s) })
}

func appendString(out []byte, s string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(s))), s...)
}

// UnmarshalHeader sets r.Header from the result of MarshalHeader, and checks r.Status. Data that
// MarshalHeader cannot have made is an [ErrRecordCorrupt], and leaves r unchanged.
func (r *Response) UnmarshalHeader(data []byte) error {
	if r.Status < 200 || r.Status > 999 {
		return fmt.Errorf("%w: status %d", ErrRecordCorrupt, r.Status)
	}
	if len(data) == 0 || len(data) > MaxStoredHeader || data[0] != headerFormat {
		return fmt.Errorf("%w: %d header bytes of an unknown format", ErrRecordCorrupt, len(data))
	}
	d := headerDecoder{rest: data[1:]}
	header := d.readHeader()
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

func (d *headerDecoder) readHeader() http.Header {
	names := d.readCount(MaxStoredNames)
	header := make(http.Header, names)
	last := ""
	for range names {
		name := d.readText(validName)
		if name <= last || textproto.CanonicalMIMEHeaderKey(name) != name {
			d.bad = true // names are sorted and unique
		}
		values := make([]string, 0, 1)
		for range d.readCount(MaxStoredValues) {
			values = append(values, d.readText(validValue))
		}
		if d.bad {
			return nil
		}
		header[name], last = values, name
	}
	return header
}

func (d *headerDecoder) readCount(limit uint64) int {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 || n > limit || d.bad {
		d.bad = true
		return 0
	}
	d.rest = d.rest[size:]
	return int(n)
}

func (d *headerDecoder) readText(valid func(string) bool) string {
	n := d.readCount(MaxStoredHeader)
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

// validValue refuses control characters, which could end a header line.
func validValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
