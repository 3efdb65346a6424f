package idemkey

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// fingerprintV1 is stored with each record. What goes into the digest may only
// change under a new name: a retry that meets a record of the old algorithm
// must still match it.
const fingerprintV1 = "v1"

// maxParts is how many pairs of a form, or parts of a multipart body, are taken
// apart. Beyond that a body costs more than it is worth, and is compared byte by byte.
const maxParts = 1000

// fingerprint digests method, path, query, media type, the configured headers
// and the whole body. It leaves out what differs between honest retries: host,
// cookies, credentials, the multipart boundary, the order of JSON members.
func (o *Options) fingerprint(r *http.Request, body []byte) (Fingerprint, error) {
	if o.Fingerprint.Custom != nil {
		return o.Fingerprint.Custom(r, body)
	}
	d := digest{hmac.New(sha256.New, o.Fingerprint.Secret)}
	d.field(fingerprintV1, r.Method, r.URL.EscapedPath())
	d.pairs(r.URL.RawQuery)
	mediaType, params := parseMediaType(r.Header.Get("Content-Type"))
	d.field(mediaType)
	for _, name := range o.Fingerprint.IncludeHeaders {
		d.field(name)
		d.field(r.Header.Values(name)...)
	}
	encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding")))
	kind, sum := o.digestBody(mediaType, params, encoding, body)
	d.field(kind, encoding, string(sum))
	return Fingerprint{Alg: fingerprintV1, Sum: d.Sum(nil)}, nil
}

// A digest hashes lists of strings, each with its length in front, so that no
// two lists hash alike.
type digest struct{ hash.Hash }

func (d digest) field(values ...string) {
	d.count(len(values))
	for _, v := range values {
		d.count(len(v))
		io.WriteString(d, v) // a hash never fails
	}
}

func (d digest) count(n int) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	d.Write(b[:])
}

// pairs hashes an urlencoded list by name, pairs of the same name in their
// order, and anything malformed as it is. It reports whether it was well-formed.
func (d digest) pairs(encoded string) bool {
	pairs, ok := parsePairs(encoded)
	if !ok {
		d.field("raw", encoded)
		return false
	}
	slices.SortStableFunc(pairs, func(a, b [2]string) int { return cmp.Compare(a[0], b[0]) })
	d.count(len(pairs))
	for _, p := range pairs {
		d.field(p[0], p[1])
	}
	return true
}

// parsePairs is like url.ParseQuery, but keeps the order.
func parsePairs(encoded string) ([][2]string, bool) {
	var pairs [][2]string
	for pair := range strings.SplitSeq(encoded, "&") {
		if pair == "" {
			continue
		}
		if len(pairs) == maxParts || strings.Contains(pair, ";") { // net/url drops a pair with a semicolon
			return nil, false
		}
		name, value, _ := strings.Cut(pair, "=")
		name, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err1 != nil || err2 != nil {
			return nil, false
		}
		pairs = append(pairs, [2]string{name, value})
	}
	return pairs, true
}

func parseMediaType(contentType string) (string, map[string]string) {
	mediaType, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		mediaType, _, _ = strings.Cut(contentType, ";")
		return strings.ToLower(strings.TrimSpace(mediaType)), nil
	}
	return mediaType, params
}

// digestBody returns the way the body was read and its digest. A body that is
// not what its type says, or that is encoded, counts byte by byte: nothing is
// ever decompressed here.
func (o *Options) digestBody(mediaType string, params map[string]string, encoding string, body []byte) (string, []byte) {
	d := digest{sha256.New()}
	switch {
	case o.Fingerprint.Raw, encoding != "" && encoding != "identity":
	case mediaType == "application/json", strings.HasSuffix(mediaType, "+json"):
		if canonical, ok := canonicalJSON(body, o.fields); ok {
			d.Write(canonical)
			return "json", d.Sum(nil)
		}
	case mediaType == "application/x-www-form-urlencoded":
		if d.pairs(string(body)) {
			return "form", d.Sum(nil)
		}
	case strings.HasPrefix(mediaType, "multipart/"):
		if d.parts(body, params["boundary"]) {
			return "multipart", d.Sum(nil)
		}
	}
	sum := sha256.Sum256(body)
	return "raw", sum[:]
}

// parts hashes each part of a multipart body: its disposition with name and file
// name, type, encoding, content.
// The boundary is chosen anew by each retry and is left out.
func (d digest) parts(body []byte, boundary string) bool {
	if boundary == "" {
		return false
	}
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for range maxParts {
		// NextRawPart, since NextPart would decode the content.
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return true
		}
		if err != nil {
			return false
		}
		content := sha256.New()
		if _, err := io.Copy(content, part); err != nil {
			return false
		}
		disposition, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		d.field(disposition, params["name"], params["filename"], part.Header.Get("Content-Type"),
			part.Header.Get("Content-Transfer-Encoding"), string(content.Sum(nil)))
	}
	return false
}
