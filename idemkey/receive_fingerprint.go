package idemkey

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// fingerprintV1 is stored with each record that the default settings have made, and before the label of
// others. The content of the digest may only change under a new name: a retry that meets a record of the old
// algorithm must still match it.
const fingerprintV1 = "v1"

// MaxFingerprintVersions bounds Options.Fingerprint.Versions.
const MaxFingerprintVersions = 8

// maxParts is how many pairs of a form, or parts of a multipart body, are taken
// apart. Beyond that a body costs more than it is worth, and is compared byte by byte.
const maxParts = 1000

// cloneSettings copies f, lists included.
func (f *FingerprintOptions) cloneSettings() FingerprintOptions {
	c := *f
	c.ExcludeFields = slices.Clone(f.ExcludeFields)
	c.IncludeFields = slices.Clone(f.IncludeFields)
	c.IncludeHeaders = slices.Clone(f.IncludeHeaders)
	c.Versions = slices.Clone(f.Versions)
	for i := range c.Versions {
		c.Versions[i] = c.Versions[i].cloneSettings()
	}
	return c
}

// checkFingerprint returns an error that names the field, and the version that it is of.
func (o *Options) checkFingerprint(invalid func(string, string, ...any) error) error {
	f := &o.Fingerprint
	if len(f.Versions) > MaxFingerprintVersions {
		return invalid("Fingerprint.Versions", "are %d, and must be at most %d", len(f.Versions), MaxFingerprintVersions)
	}
	if err := f.checkSettings("Fingerprint.", invalid); err != nil {
		return err
	}
	for i := range f.Versions {
		version, prefix := &f.Versions[i], fmt.Sprintf("Fingerprint.Versions[%d].", i)
		switch {
		case len(version.Versions) > 0:
			return invalid(prefix+"Versions", "must be empty: list all versions in Fingerprint.Versions")
		case version.Unlabelled:
			return invalid(prefix+"Unlabelled", "must be false: it is about records to be made")
		}
		if err := version.checkSettings(prefix, invalid); err != nil {
			return err
		}
	}
	return nil
}

func (f *FingerprintOptions) checkSettings(prefix string, invalid func(string, string, ...any) error) error {
	fields := len(f.ExcludeFields) + len(f.IncludeFields)
	switch {
	case f.Custom != nil && (f.Raw || f.Unlabelled || fields+len(f.IncludeHeaders)+len(f.Secret) > 0):
		return invalid(prefix+"Custom", "replaces the digest that the other fingerprint options are about")
	case f.Raw && fields > 0:
		return invalid(prefix+"Raw", "contradicts ExcludeFields and IncludeFields")
	case len(f.ExcludeFields) > 0 && len(f.IncludeFields) > 0:
		return invalid(prefix+"IncludeFields", "contradicts ExcludeFields")
	}
	if i := slices.IndexFunc(f.IncludeHeaders, func(s string) bool { return !validName(s) }); i >= 0 {
		return invalid(prefix+"IncludeHeaders", "%q is not a name", f.IncludeHeaders[i])
	}
	for field, paths := range map[string][]string{"ExcludeFields": f.ExcludeFields, "IncludeFields": f.IncludeFields} {
		for _, path := range paths {
			if _, err := parseFieldPath(path); err != nil {
				return invalid(prefix+field, "%q is not a path such as sentAt, meta.nonce or items[].ts: %v", path, err)
			}
		}
	}
	return nil
}

// A fingerprinter is one version of FingerprintOptions, ready for use.
type fingerprinter struct {
	opts   FingerprintOptions
	fields fieldSet
	label  string // is stored as Alg; empty: Custom says
}

// newFingerprinter takes options that have been checked.
func newFingerprinter(opts FingerprintOptions) *fingerprinter {
	f := &fingerprinter{opts: opts, fields: newFieldSet(opts.ExcludeFields, opts.IncludeFields)}
	if opts.Custom == nil {
		f.label = opts.settingsLabel()
	}
	return f
}

// settingsLabel names settings in records: settings that make different sums have different labels. It is
// keyed with the secret, so that it reveals no more of the secret than the sums do. Header names count as they
// are spelled, as in the sums.
func (f *FingerprintOptions) settingsLabel() string {
	if !f.Raw && len(f.Secret)+len(f.IncludeHeaders)+len(f.ExcludeFields)+len(f.IncludeFields) == 0 {
		return fingerprintV1
	}
	d := digest{hmac.New(sha256.New, f.Secret)}
	d.writeStrings("idemkey fingerprint settings 1", strconv.FormatBool(f.Raw))
	d.writeStrings(f.IncludeHeaders...)
	d.writeStrings(normalPaths(f.ExcludeFields)...)
	d.writeStrings(normalPaths(f.IncludeFields)...)
	return fingerprintV1 + labelMark + hex.EncodeToString(d.Sum(nil)[:8])
}

// labelMark stands between the algorithm and the rest of a label.
const labelMark = ":"

// normalPaths returns a set of paths in one order and spelling.
func normalPaths(paths []string) []string {
	var normal []string
	for _, path := range paths {
		p, _ := parseFieldPath(path) // checked
		normal = append(normal, p.String())
	}
	slices.Sort(normal)
	return slices.Compact(normal)
}

// mayHaveMade reports whether f can have made a fingerprint by alg. Processes that know no labels
// have stored v1 for all settings. A Custom may always have made it, and all settings may if alg is empty.
func (f *fingerprinter) mayHaveMade(alg string) bool {
	return alg == "" || f.label == "" || f.label == alg || alg == fingerprintV1
}

// fingerprintOf is that of the current settings, for the claim.
func (o *Options) fingerprintOf(r *http.Request, body []byte) (Fingerprint, error) {
	fp, err := o.current.digestRequest(r, body)
	if o.Fingerprint.Unlabelled {
		fp.Alg = fingerprintV1
	}
	return fp, err
}

// fingerprintsAsSpelled returns r's fingerprint with its path as the client has spelled it, as older processes have stored
// it. There is none if that is the normal spelling.
func (f *fingerprinter) fingerprintsAsSpelled(r *http.Request, body []byte) []Fingerprint {
	spelled := r.URL.EscapedPath()
	if f.opts.Custom != nil || spelled == normalPath(spelled) {
		return nil
	}
	return []Fingerprint{f.digestPath(spelled, r, body)}
}

// normalPath returns an escaped path with unreserved characters as themselves, and escapes in upper case: RFC 3986 says in
// 6.2.2 that such spellings are equivalent.
func normalPath(escaped string) string {
	if !strings.Contains(escaped, "%") {
		return escaped
	}
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		if escaped[i] != '%' || i+2 >= len(escaped) {
			b.WriteByte(escaped[i])
			continue
		}
		code, err := hex.DecodeString(escaped[i+1 : i+3])
		switch {
		case err == nil && unreserved(code[0]):
			b.WriteByte(code[0])
		default:
			b.WriteString(strings.ToUpper(escaped[i : i+3]))
		}
		i += 2
	}
	return b.String()
}

// unreserved reports whether c means the same with and without an escape.
func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// digestRequest digests method, path, query, media type, the configured headers
// and the whole body. It leaves out what differs between honest retries: host,
// cookies, credentials, the multipart boundary, the order of JSON members.
func (f *fingerprinter) digestRequest(r *http.Request, body []byte) (Fingerprint, error) {
	if f.opts.Custom != nil {
		return f.opts.Custom(r, body)
	}
	return f.digestPath(normalPath(r.URL.EscapedPath()), r, body), nil
}

// digestPath is digestRequest for one spelling of the path.
func (f *fingerprinter) digestPath(path string, r *http.Request, body []byte) Fingerprint {
	d := digest{hmac.New(sha256.New, f.opts.Secret)}
	d.writeStrings(fingerprintV1, r.Method, path)
	d.writePairs(r.URL.RawQuery)
	mediaType, params := parseMediaType(r.Header.Get("Content-Type"))
	d.writeStrings(mediaType)
	for _, name := range f.opts.IncludeHeaders {
		d.writeStrings(name)
		d.writeStrings(r.Header.Values(name)...)
	}
	encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding")))
	kind, sum := f.digestBody(mediaType, params, encoding, body)
	d.writeStrings(kind, encoding, string(sum))
	return Fingerprint{Alg: f.label, Sum: d.Sum(nil)}
}

// A digest hashes lists of strings, each with its length in front, so that no
// two lists hash alike.
type digest struct{ hash.Hash }

func (d digest) writeStrings(values ...string) {
	d.writeCount(len(values))
	for _, v := range values {
		d.writeCount(len(v))
		io.WriteString(d, v) // a hash never fails
	}
}

func (d digest) writeCount(n int) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	d.Write(b[:])
}

// writePairs hashes an urlencoded list by name, pairs of the same name in their
// order, and anything malformed as it is. It reports whether it was well-formed.
func (d digest) writePairs(encoded string) bool {
	pairs, ok := parsePairs(encoded)
	if !ok {
		d.writeStrings("raw", encoded)
		return false
	}
	slices.SortStableFunc(pairs, func(a, b [2]string) int { return cmp.Compare(a[0], b[0]) })
	d.writeCount(len(pairs))
	for _, p := range pairs {
		d.writeStrings(p[0], p[1])
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
func (f *fingerprinter) digestBody(mediaType string, params map[string]string, encoding string, body []byte) (string, []byte) {
	d := digest{sha256.New()}
	switch {
	case f.opts.Raw, encoding != "" && encoding != "identity":
	case mediaType == "application/json", strings.HasSuffix(mediaType, "+json"):
		if canonical, ok := canonicalJSON(body, f.fields); ok {
			d.Write(canonical)
			return "json", d.Sum(nil)
		}
	case mediaType == "application/x-www-form-urlencoded":
		if d.writePairs(string(body)) {
			return "form", d.Sum(nil)
		}
	case strings.HasPrefix(mediaType, "multipart/"):
		if d.writeParts(body, params["boundary"]) {
			return "multipart", d.Sum(nil)
		}
	}
	sum := sha256.Sum256(body)
	return "raw", sum[:]
}

// writeParts hashes each part of a multipart body: its disposition with name and file
// name, type, encoding, content.
// The boundary is chosen anew by each retry and is left out.
func (d digest) writeParts(body []byte, boundary string) bool {
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
		d.writeStrings(disposition, params["name"], params["filename"], part.Header.Get("Content-Type"),
			part.Header.Get("Content-Transfer-Encoding"), string(content.Sum(nil)))
	}
	return false
}
