package idemkey

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

var (
	errKeyMissing = errors.New("idemkey: no key")
	errKeyInvalid = errors.New("idemkey: invalid key")
)

// A request is one covered request on its way through the stages. The receiver fills it. The later
// stages read it, and add to its event.
type request struct {
	m     *Middleware
	w     http.ResponseWriter
	r     *http.Request
	body  []byte    // whole, of a request with a key
	id    Identity  // empty without a key, and where nothing is remembered
	claim Claim     // for the store
	place placement // where the middleware is mounted
	event Event     // for the log and the Observer, when the request is over
}

func newRequest(m *Middleware, w http.ResponseWriter, r *http.Request) *request {
	return &request{m: m, w: w, r: r, event: Event{Route: r.Pattern}}
}

// detachedContext is the request's context without its end: a client that disconnects must not leave a
// half-made claim or outcome behind.
func (q *request) detachedContext() context.Context { return context.WithoutCancel(q.r.Context()) }

// withBody returns the request under ctx, with its body yet to be read.
func (q *request) withBody(ctx context.Context) *http.Request {
	r := q.r.WithContext(ctx)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(q.body)), int64(len(q.body))
	return r
}

// A receiver finds out which request this is. It answers a request that cannot be claimed.
type receiver struct {
	*request
	answers answerer
}

// receiveRequest goes through the steps in their observable order: key, scope, mounts, body, fingerprint.
// The body is read whole before anything is claimed, so that a slow client holds no lock and no
// connection. If receiveRequest is not ok, it has answered.
func (v *receiver) receiveRequest(site mountStack) (ok bool) {
	o := v.m.opts
	v.claim = Claim{TTL: o.Limits.TTL, Lease: o.Limits.Lease, ExecTimeout: o.Limits.ExecTimeout, MaxAttempts: o.Limits.MaxAttempts,
		FailedTTL: o.Limits.FailedTTL, RejectExpired: o.Key.RejectExpired}
	if o.external() {
		v.claim.External, v.claim.DedupesFor, v.claim.MaxUnknown = true, o.UpstreamDedupes, o.Limits.MaxUnknownPerScope
		// The handler may be at its call although the store has lost sight of its owner: it counts as running for as long.
		v.claim.Lease = max(v.claim.Lease, v.claim.ExecTimeout+o.Limits.CompleteTimeout)
	}
	sent, err := o.readKey(v.r.Header)
	switch {
	case errors.Is(err, errKeyMissing) && o.Key.Optional:
		return v.checkMounts(site)
	case errors.Is(err, errKeyMissing):
		v.answers.refuseRequest(ResultMissing, CodeKeyMissing, nil)
		return false
	case err != nil:
		v.answers.refuseRequest(ResultInvalid, CodeKeyInvalid, nil)
		return false
	case !v.identifyCaller(sent.key) || !v.checkMounts(site) || !v.readBody(atHandler):
		return false
	}
	if v.claim.FP, err = o.fingerprintOf(v.r, v.body); err != nil {
		v.answers.refuseRequest(ResultInvalid, CodeBodyUnreadable, err)
		return false
	}
	v.claim.Prior = o.current.fingerprintsAsSpelled(v.r, v.body)
	v.w.Header().Set(sent.header, sent.value) // checked: it can hold no line break
	return true
}

// identifyCaller sets the identity that the key has in the caller's scope. If it is not ok, it has answered.
func (v *receiver) identifyCaller(key string) (ok bool) {
	scope, err := v.m.opts.scopeOf(v.r)
	switch {
	case errors.Is(err, errScopeInvalid):
		v.answers.refuseRequest(ResultMisconfigured, CodeScopeInvalid, err)
		return false
	case err != nil:
		v.answers.refuseRequest(ResultUnauthorized, CodeScopeMissing, err)
		return false
	}
	v.id = Identity{Namespace: v.m.opts.namespaceOf(v.r), Scope: scope, Key: key}
	v.claim.ID = v.id
	return true
}

// errScopeInvalid is for the log: the service made the scope, and not the client.
var errScopeInvalid = errors.New("idemkey: Options.Scope returned an invalid scope")

// scopeOf returns the scope that Options.Scope gives r.
func (o *Options) scopeOf(r *http.Request) (string, error) {
	if o.SingleTenant {
		return singleTenant, nil
	}
	scope, err := o.Scope(r)
	if err != nil {
		return "", err
	}
	return scope, checkScope(scope)
}

// checkScope returns an error that does not repeat the scope.
func checkScope(scope string) error {
	switch odd := findOddByte(scope); {
	case scope == "":
		return errors.New("idemkey: Options.Scope returned no scope")
	case len(scope) > MaxScope:
		return fmt.Errorf("%w: it has %d bytes, the limit is %d", errScopeInvalid, len(scope), MaxScope)
	case odd >= 0:
		return fmt.Errorf("%w: byte %d is a control character or no UTF-8", errScopeInvalid, odd)
	}
	return nil
}

// A sentKey is a key as the client sent it.
type sentKey struct {
	key    string // decoded
	header string // the header that carried it
	value  string // as received, to be echoed
}

// readKey finds the request's key under the configured header and its aliases. It reads every line: Get would
// hide a second one, which proxies on the way may have read instead.
func (o *Options) readKey(h http.Header) (sentKey, error) {
	var found sentKey
	for _, name := range append([]string{o.Key.Header}, o.Key.Aliases...) {
		lines := h.Values(name)
		if len(lines) == 0 {
			continue
		}
		if len(lines) > 1 {
			return sentKey{}, fmt.Errorf("%w: the header stands %d times", errKeyInvalid, len(lines))
		}
		key, err := parseKey(lines[0], o.Key.StrictSyntax)
		if err != nil {
			return sentKey{}, err
		}
		if found.header != "" && found.key != key {
			return sentKey{}, fmt.Errorf("%w: two headers disagree", errKeyInvalid)
		}
		if found.header == "" {
			found = sentKey{key, name, lines[0]}
		}
	}
	if found.header == "" {
		return sentKey{}, errKeyMissing
	}
	return found, o.checkKey(found.key)
}

// hasKey reports whether h has a line for a key, well formed or not.
func (o *Options) hasKey(h http.Header) bool {
	has := func(name string) bool { return len(h.Values(name)) > 0 }
	return has(o.Key.Header) || slices.ContainsFunc(o.Key.Aliases, has)
}

func (o *Options) checkKey(key string) error {
	if len(key) < o.Key.MinLen || len(key) > o.Key.MaxLen {
		return fmt.Errorf("%w: %d characters, the limits are %d and %d", errKeyInvalid, len(key), o.Key.MinLen, o.Key.MaxLen)
	}
	if o.Key.Validate != nil {
		if err := o.Key.Validate(key); err != nil {
			return fmt.Errorf("%w: %w", errKeyInvalid, err)
		}
	}
	return nil
}

// parseKey decodes one field value: an RFC 9651 string or, as deployed APIs have it, the bare characters. Both
// spellings of one key are the same key.
func parseKey(value string, strict bool) (string, error) {
	value = strings.Trim(value, " \t")
	switch {
	case value == "":
		return "", fmt.Errorf("%w: blank", errKeyInvalid)
	case value[0] == '"':
		return parseQuotedKey(value)
	case strict:
		return "", fmt.Errorf("%w: not in quotes", errKeyInvalid)
	}
	for i := range len(value) {
		if c := value[i]; c <= ' ' || c > '~' || c == '"' || c == ',' || c == ';' {
			return "", fmt.Errorf("%w: byte %d cannot stand in a bare key", errKeyInvalid, i)
		}
	}
	return value, nil
}

func parseQuotedKey(value string) (string, error) {
	key, rest, ok := parseString(value)
	for ok && rest != "" {
		rest, ok = skipParameter(rest)
	}
	if !ok {
		return "", fmt.Errorf("%w: malformed quoted string", errKeyInvalid)
	}
	if strings.Trim(key, " ") == "" {
		return "", fmt.Errorf("%w: blank", errKeyInvalid)
	}
	return key, nil
}

// parseString decodes the RFC 9651 string that s begins with.
func parseString(s string) (decoded, rest string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", false
			}
			b.WriteByte(s[i])
		case c < ' ' || c > '~':
			return "", "", false
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

// skipParameter steps over one ";name" or ";name=value", whose meaning no specification gives. All else, such
// as the comma of a list, is not ok.
func skipParameter(s string) (rest string, ok bool) {
	if s[0] != ';' {
		return "", false
	}
	s = strings.TrimLeft(s[1:], " ")
	end := strings.IndexFunc(s, notParameterName)
	if end < 0 {
		end = len(s)
	}
	if end == 0 || s[0] != '*' && (s[0] < 'a' || s[0] > 'z') {
		return "", false
	}
	s = s[end:]
	if !strings.HasPrefix(s, "=") {
		return s, true
	}
	return skipBareItem(s[1:])
}

func notParameterName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.*", r))
}

func skipBareItem(s string) (rest string, ok bool) {
	if quoted := strings.TrimPrefix(s, "%"); strings.HasPrefix(quoted, `"`) {
		_, rest, ok = parseString(quoted)
		return rest, ok
	}
	end := strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`;,"\`, r) })
	if end < 0 {
		end = len(s)
	}
	return s[end:], end > 0
}

// UUIDKeys is an [KeyOptions].Validate that accepts UUIDs only, of any
// version, in their usual spelling. It keeps guessable keys out.
func UUIDKeys(key string) error {
	if len(key) != 36 {
		return errors.New("not a UUID")
	}
	for i := range len(key) {
		c := key[i]
		dash := i == 8 || i == 13 || i == 18 || i == 23
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
		if dash != (c == '-') || !dash && !hex {
			return errors.New("not a UUID")
		}
	}
	return nil
}
