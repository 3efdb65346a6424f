package idemkey

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The defaults and bounds of [Options].
const (
	DefaultHeader            = "Idempotency-Key"
	DefaultNamespace         = "http"
	DefaultReplayHeader      = "Idempotent-Replayed"
	DefaultTTL               = 24 * time.Hour
	DefaultLease             = 30 * time.Second
	DefaultExecTimeout       = 25 * time.Second
	DefaultStoreTimeout      = 5 * time.Second
	DefaultCompleteTimeout   = 5 * time.Second
	DefaultMaxUnknown        = 100
	DefaultMaxRequestBody    = 1 << 20
	DefaultMaxResponseBody   = 1 << 20
	DefaultHardResponseLimit = 16 << 20

	MinTTL = time.Second
	MaxTTL = 30 * 24 * time.Hour

	// singleTenant is the scope of everybody under Options.SingleTenant.
	singleTenant = "default"
)

// Options configure a [Middleware]. Either Scope or SingleTenant must be set;
// all else has a default.
type Options struct {
	// Scope returns the id of the principal who owns the request's key; do not return the
	// header Authorization, whose value may change between retries. An error or
	// an empty scope is answered with 401, one of more than [MaxScope] bytes or that is no
	// printable UTF-8 with 500. Required unless SingleTenant.
	Scope        func(*http.Request) (string, error)
	SingleTenant bool // all callers share one scope; default: false
	// With ScopeByRoute, the same key with another method or route counts as another key; the route is the request's
	// ServeMux pattern, or its path if there is no ServeMux. Default: a key that a client uses again with another
	// method or route is refused with MismatchStatus.
	ScopeByRoute bool

	Methods []string                 // HTTP methods that the middleware covers; default: POST, PATCH
	Skip    func(*http.Request) bool // Skip returns true for a request that the middleware passes to the handler without looking for a key; default: none

	Key         KeyOptions         // Key says how clients send a key, and how the middleware answers a request with an expired key
	Fingerprint FingerprintOptions // Fingerprint says which requests count as the same request
	Limits      Limits             // Limits are limits of times, body sizes, attempts and running handlers
	Response    ResponseOptions    // Response says which parts of a response are stored, and how the middleware sends a stored response to a retry
	Problems    ProblemOptions     // Problems says how the middleware answers a request that it refuses

	Policy Policy // if the handler gave no [Verdict], Policy decides whether the transaction commits, and whether the response is stored; default: DefaultPolicy, and UpstreamPolicy with ExternalEffects

	// ExternalEffects says that handlers have effects that the store cannot roll back, such as a call to a payment
	// provider. The outcome is then unknown if the process dies or hangs while it runs a handler, if the handler
	// panics, exceeds Limits.ExecTimeout or fails with an error that is no [*Problem], if its transaction cannot
	// commit, and if the verdict is [Unknown]. A retry gets 409 outcome-unknown until Recover, a [Reconciler] or a
	// person has decided; the record does not expire before. After a process has vanished, a retry first gets 409
	// in-progress for Limits.Lease, or for ExecTimeout and CompleteTimeout if that is longer. Default: after any of
	// these, a retry runs the handler again.
	ExternalEffects bool
	// UpstreamDedupes is how long the other system recognizes the key of [DownstreamKey], from the first request on.
	// While ExecTimeout ends within this time, a retry repeats no effect, so it runs although the outcome is unknown.
	// It needs ExternalEffects and must be longer than ExecTimeout. Default: the other system recognizes no key.
	UpstreamDedupes time.Duration
	// Recover finds out what a run whose outcome is unknown has done; setting Recover also switches ExternalEffects on.
	// A response is kept and replayed; nil says that the run had no effect, and the request runs again; after an error
	// the retry gets 409 outcome-unknown. Recover must change nothing, must return within half of Limits.Lease, and may
	// be called by two retries at the same time. A [Reconciler] calls it as well. Default: none.
	Recover func(ctx context.Context, id Identity) (*Response, error)
	// With FailOpen, handlers run without idempotency while the store fails; a retry can then run a handler again. Each
	// such run is logged as an error, with [ResultFailOpen] in its Event. Default: if the store fails, the request gets
	// 503.
	FailOpen bool
	// When the client disconnects, CancelOnDisconnect cancels the handler and rolls its transaction back. Default: the
	// handler finishes, and a retry gets the response.
	CancelOnDisconnect bool

	Observer Observer     // Observer gets the [Event] of each request whose method is in Methods, unless Skip returns true for the request; default: none
	Logger   *slog.Logger // Logger gets one entry for each Event; default: slog.Default()
	LogKeys  bool         // log keys and scopes in plain text; default: a hash is logged

	unsetPolicy bool // Policy is a default

	current *fingerprinter   // of Fingerprint
	older   []*fingerprinter // of Fingerprint.Versions
	kept    map[string]bool  // canonical names of the response headers that are stored
	own     map[string]bool  // and of those that no handler sets
}

// KeyOptions say how clients send a key, and which keys the middleware accepts.
type KeyOptions struct {
	Optional      bool               // also accept requests without a key; nothing is stored about such a request, and the middleware does not read its body; default: a request without a key gets 400
	Header        string             // name of the header with the key; default: Idempotency-Key
	Aliases       []string           // names of other headers in which a client may send the key; a request that has different keys in its headers gets 400; default: none
	StrictSyntax  bool               // refuse keys that are not in quotes; default: false
	MinLen        int                // shortest key, in characters; default: 1
	MaxLen        int                // longest key, in characters, at most 255; default: 255
	Validate      func(string) error // Validate returns an error for a key that the middleware must refuse; an example is UUIDKeys; default: none
	Namespace     string             // namespace of the records in the store; the same scope and key in two namespaces are two records; default: http
	RejectExpired bool               // with RejectExpired, a request with an expired key gets 410 until a sweep has removed the record of the key; default: an expired key counts as a new key
}

// FingerprintOptions say which requests count as the same request: see [Fingerprint].
//
// A path leads from a JSON document's root to a member of an object. A leading $. may be left
// out.
//
//	sentAt          a member of the root
//	meta.nonce      a member of the object meta
//	items[].ts      a member of each object in the array items
//	[].ts           a member of each object in an array that is the root
//	rows[][].ts     arrays in an array
//	meta["a.b"]     a member called a.b, as a JSON string in brackets
//
// A path without brackets also finds names that have dots: meta.nonce is a member of meta, or a
// member of the root that is called "meta.nonce". meta["nonce"] is the first alone. A path finds
// nothing where a document has an array and the path a name, or the reverse. A path ends
// with a name: leaving out elements would hide their number. Elements by number, *, ..
// and filters are not supported: [New] refuses them. On the way to an included member, arrays count
// by their length, and so does a number in the place of an object.
//
// These options are settings of records that live as long as Limits.TTL. A record says which
// settings made it, and a retry is compared by those. So settings that change stay in Versions for
// a TTL: without them a retry is answered with [CodeFingerprintUnknown].
type FingerprintOptions struct {
	Secret         []byte   // secret key for the fingerprints of requests, such as 32 random bytes; without Secret, somebody who reads the store could guess small request bodies from their fingerprints; default: none
	ExcludeFields  []string // paths of members of a JSON body; the middleware does not compare these members; default: none
	IncludeFields  []string // paths of the members of a JSON body that the middleware compares; it ignores all other members; default: all members
	IncludeHeaders []string // names of request headers that the middleware also compares; default: none
	Raw            bool     // compare bodies byte by byte; default: the content type decides how bodies are compared
	// Custom computes the fingerprint of a request in place of the built-in digest. Its Alg must change whenever it
	// does, and must not begin with "v1". Default: the digest v1.
	Custom func(r *http.Request, body []byte) (Fingerprint, error)

	// Versions lists all other FingerprintOptions that unexpired records were made with, newest first; at most
	// [MaxFingerprintVersions] are allowed. Each has no Versions and is not Unlabelled; the empty one is the default.
	// Nothing is inherited: each has all of its fields. Default: none.
	Versions []FingerprintOptions

	// Unlabelled stores a [Fingerprint] without the label that says which FingerprintOptions made it; set Unlabelled
	// while processes with an older sagamill, which knows no labels, use the same store. The field Alg is then "v1".
	// Unlabelled is refused with Custom. Default: false.
	Unlabelled bool
}

// Limits are limits of times, body sizes (in bytes), attempts and running handlers.
type Limits struct {
	TTL             time.Duration // time after which a record expires; must be at least as long as Lease and as ExecTimeout; default: 24 h
	Lease           time.Duration // if the earlier request's process has not renewed its claim for this time, a retry can run the handler; if the store does not renew claims, Lease must be longer than ExecTimeout; the store idempg uses idempg.Options.Grace instead; default: 30 s
	ExecTimeout     time.Duration // time after which the handler's context ends; a response that comes after this time is discarded; default: 25 s
	StoreTimeout    time.Duration // longest time for claiming the key in the store, including waits for a connection; default: 5 s
	CompleteTimeout time.Duration // longest time for storing the outcome of a request; default: 5 s

	// Wait is how long a request waits for the response of a running request with the same key, at
	// most [MaxWait]. The waiting request holds no connection. Beyond [MaxWaitersPerKey] and
	// [MaxWaiters], and after Wait, the request is refused as without Wait. Default: no waiting.
	Wait time.Duration

	FailedTTL time.Duration // how long the key of a failed request is kept after the failure; until then, only the same request can use the key; default: the rest of TTL

	MaxUnknownPerScope int // largest number of requests of one scope whose outcome is unknown (see ExternalEffects); beyond it, a request with a new key gets 503 unknown-limit; default: 100

	MaxAttempts int // largest number of runs of the handler for one key; if the last of these runs fails too, the outcome of the request counts as unknown; default: no limit
	// MaxInFlightPerScope is how many handlers may run at the same time for one scope in this process, on all routes
	// that have this limit together. A route without this limit does not count. Over the limit a request is answered
	// with 503, unless its record decides it. Default: no limit.
	MaxInFlightPerScope int

	MaxRequestBody int64 // largest body of a request with a key; a request with a larger body gets 413; default: 1 MiB

	// MaxResponseBody is the largest response body that is stored; after a larger response, a retry gets 410. The same
	// holds for [MaxStoredNames], [MaxStoredValues] and [MaxStoredHeader]: the client gets the response once, and only
	// the fact that the request ran is kept. Default: 1 MiB.
	MaxResponseBody int
	// HardResponseLimit is the largest response body that the middleware keeps in memory; in place of a larger
	// response, the client gets a problem with status 500 and the code response-too-large, which tells the client not
	// to retry. A transactional store has rolled back and released the key; with ExternalEffects the outcome is then
	// unknown. On other stores the handler's effects stand, so a retry gets 410, unless the verdict on the status lets
	// it run again. Default: 16 MiB, at least MaxResponseBody.
	HardResponseLimit int
}

// ResponseOptions say which parts of a response are stored, and how the middleware sends a stored response to a retry.
type ResponseOptions struct {
	KeepHeaders       []string // names of further response headers to store; Content-Type and some other headers are always stored; do not list the headers that Header, Aliases and ReplayHeader name; default: none
	KeepAllHeaders    bool     // store all headers but those of one connection or one caller: hop-by-hop headers, those that Connection lists, cookies, credentials, Date, Server and Alt-Svc; for a proxy, whose upstream may set any; default: false
	ReplayHeader      string   // name of the header that has the value "true" in each stored response that a retry gets; default: Idempotent-Replayed
	EmitReplayedFalse bool     // send ReplayHeader with the value "false" in responses that come from the handler; default: responses that come from the handler do not have the header ReplayHeader

	NoStoreBody bool                               // store no response bodies; a retry then gets 410; default: false
	Redact      func(r *http.Request, s *Response) // Redact changes the copy of the response that is stored for retries; the first request gets the unchanged response; default: none
	Sealer      Sealer                             // Sealer encrypts stored bodies; default: none
	// ReplayHook changes a stored response before a retry gets it; an error of ReplayHook is answered like an error of
	// a handler. Default: the retry gets the stored bytes.
	ReplayHook func(r *http.Request, s *Response) error
	// LocalReplays is how many stored responses this process also keeps in memory, each for at most a minute; the
	// middleware sends these responses to retries without asking the store. Default: none.
	LocalReplays int

	// AllowStreaming sends a 2xx response to the client while the handler is still writing this response, so that Flush
	// works. Of such a response only the fact is kept, and it is kept before the first byte leaves: a retry gets 410,
	// even if the handler, the process or the connection fails half-way, and never a second run. The deciding verdict
	// is the verdict at the first byte. If the fact cannot be kept, only an error is sent. A response whose handler
	// panics or fails, or that ExecTimeout ends, is cut off: the connection ends, by a deadline where a recoverer
	// swallows http.ErrAbortHandler. So that the client can tell, it has no Content-Length, and HTTP/1.0 is not
	// streamed. All other responses, and a 2xx without a body, are kept and replayed as usual. It is refused for stores
	// whose writes could still roll back. Default: false.
	AllowStreaming bool
}

// ProblemOptions say how the middleware answers requests that it refuses, and how it answers errors.
type ProblemOptions struct {
	MapError       func(error) *Problem // MapError returns the problem for an error of the handler, or for an error of COMMIT (CommitError); if MapError returns nil, the default problem is sent; default: a problem with status 500
	Writer         ProblemWriter        // Writer writes a problem as the response; default: WriteProblem
	InFlightStatus int                  // status for a key whose request is still running: 409, 423 or 429; default: 409
	MismatchStatus int                  // status for a key that was used for a different request: 422, 409 or 400; default: 422

	// UnknownFingerprintStatus is the status for a request that cannot be compared with the first request of its key,
	// because [FingerprintOptions] have changed ([CodeFingerprintUnknown]): 409, 422 or 503. With 503 the problem asks
	// the client to retry with the same key. Default: 409.
	UnknownFingerprintStatus int

	TypeBase string // beginning of the member "type" of a problem; the code of the problem follows; default: DocsURL followed by "#"; without a DocsURL, urn:idemkey:problem:
	DocsURL  string // URL of the page that describes the problems; default: none
}

// cloneOptions copies o, lists included, so that a route's changes stay its own.
func (o *Options) cloneOptions() *Options {
	c := *o
	if c.unsetPolicy { // the default depends on other options
		c.Policy = nil
	}
	c.Methods = slices.Clone(o.Methods)
	c.Key.Aliases = slices.Clone(o.Key.Aliases)
	c.Fingerprint = o.Fingerprint.cloneSettings()
	c.Response.KeepHeaders = slices.Clone(o.Response.KeepHeaders)
	return &c
}

func (o *Options) setDefaults() {
	o.Key.Namespace = cmp.Or(o.Key.Namespace, DefaultNamespace)
	if len(o.Methods) == 0 {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	o.Key.Header = cmp.Or(o.Key.Header, DefaultHeader)
	o.Key.MinLen = cmp.Or(o.Key.MinLen, 1)
	o.Key.MaxLen = cmp.Or(o.Key.MaxLen, MaxKey)
	o.Limits.TTL = cmp.Or(o.Limits.TTL, DefaultTTL)
	o.Limits.Lease = cmp.Or(o.Limits.Lease, DefaultLease)
	o.Limits.ExecTimeout = cmp.Or(o.Limits.ExecTimeout, DefaultExecTimeout)
	o.Limits.StoreTimeout = cmp.Or(o.Limits.StoreTimeout, DefaultStoreTimeout)
	o.Limits.MaxUnknownPerScope = cmp.Or(o.Limits.MaxUnknownPerScope, DefaultMaxUnknown)
	o.Limits.CompleteTimeout = cmp.Or(o.Limits.CompleteTimeout, DefaultCompleteTimeout)
	if o.unsetPolicy = o.Policy == nil; o.unsetPolicy {
		o.Policy = DefaultPolicy
		if o.external() {
			o.Policy = UpstreamPolicy
		}
	}
	o.Limits.MaxRequestBody = cmp.Or(o.Limits.MaxRequestBody, DefaultMaxRequestBody)
	o.Limits.MaxResponseBody = cmp.Or(o.Limits.MaxResponseBody, DefaultMaxResponseBody)
	o.Limits.HardResponseLimit = cmp.Or(o.Limits.HardResponseLimit, max(DefaultHardResponseLimit, o.Limits.MaxResponseBody))
	o.Response.ReplayHeader = cmp.Or(o.Response.ReplayHeader, DefaultReplayHeader)
	o.Problems.InFlightStatus = cmp.Or(o.Problems.InFlightStatus, http.StatusConflict)
	o.Problems.MismatchStatus = cmp.Or(o.Problems.MismatchStatus, http.StatusUnprocessableEntity)
	o.Problems.UnknownFingerprintStatus = cmp.Or(o.Problems.UnknownFingerprintStatus, http.StatusConflict)
	if o.Problems.Writer == nil {
		o.Problems.Writer = WriteProblem
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// external reports whether the outcome of a run may be unknown.
func (o *Options) external() bool { return o.ExternalEffects || o.Recover != nil }

// prepareLookups computes what is looked up on every request.
func (o *Options) prepareLookups() {
	o.current, o.older = newFingerprinter(o.Fingerprint), nil
	for _, version := range o.Fingerprint.Versions {
		o.older = append(o.older, newFingerprinter(version))
	}
	o.kept = make(map[string]bool)
	for _, name := range slices.Concat(storedHeaders, o.Response.KeepHeaders) {
		o.kept[http.CanonicalHeaderKey(name)] = true
	}
	o.own = make(map[string]bool)
	for _, name := range o.ownHeaders() {
		o.own[http.CanonicalHeaderKey(name)] = true
	}
}

// ownHeaders are the response headers that only the middleware sets.
func (o *Options) ownHeaders() []string {
	return append([]string{o.Key.Header, o.Response.ReplayHeader}, o.Key.Aliases...)
}

// checkOptions returns an error that names the field.
func (o *Options) checkOptions(store Traits) error {
	invalid := func(field, format string, args ...any) error {
		return fmt.Errorf("idemkey: Options.%s %s", field, fmt.Sprintf(format, args...))
	}
	for _, check := range []func(func(string, string, ...any) error) error{o.checkIdentity, o.checkFingerprint, o.checkTimes, o.checkLimits, o.checkAnswers} {
		if err := check(invalid); err != nil {
			return err
		}
	}
	return o.checkStore(store, invalid)
}

// checkStore refuses what the store cannot do, or would make unsafe.
func (o *Options) checkStore(store Traits, invalid func(string, string, ...any) error) error {
	switch {
	case o.Limits.Lease <= o.Limits.ExecTimeout && !store.LiveOwners:
		return invalid("Limits.Lease", "is %v, and must be longer than Limits.ExecTimeout, %v: the store does not renew it", o.Limits.Lease, o.Limits.ExecTimeout)
	case o.FailOpen && o.external():
		return invalid("FailOpen", "would run a handler with ExternalEffects although the store may know of a run")
	case o.FailOpen && store.Transactional:
		return invalid("FailOpen", "would run handlers without the transaction that the store promises")
	case o.Response.AllowStreaming && store.Transactional:
		return invalid("Response.AllowStreaming", "would send what the store's transaction may still roll back")
	case o.UpstreamDedupes != 0 && !o.external():
		return invalid("UpstreamDedupes", "needs ExternalEffects")
	case o.UpstreamDedupes != 0 && o.UpstreamDedupes <= o.Limits.ExecTimeout:
		return invalid("UpstreamDedupes", "is %v, and must be longer than Limits.ExecTimeout, %v: the retry must end within it", o.UpstreamDedupes, o.Limits.ExecTimeout)
	case o.external() && store.Traceless:
		return invalid("ExternalEffects", "needs a store that remembers unfinished runs")
	case o.Limits.MaxAttempts > 0 && store.Traceless:
		return invalid("Limits.MaxAttempts", "needs a store that remembers unfinished runs")
	}
	return nil
}

func (o *Options) checkIdentity(invalid func(string, string, ...any) error) error {
	switch {
	case o.Scope == nil && !o.SingleTenant:
		return invalid("Scope", "is required, unless SingleTenant says that all callers share one scope")
	case o.Scope != nil && o.SingleTenant:
		return invalid("SingleTenant", "contradicts Scope")
	case !printableText(o.Key.Namespace, MaxNamespace):
		return invalid("Key.Namespace", "must be 1 to %d printable bytes", MaxNamespace)
	case o.ScopeByRoute && len(o.Key.Namespace) > MaxNamespace-routeLen:
		return invalid("Key.Namespace", "must be at most %d bytes with ScopeByRoute", MaxNamespace-routeLen)
	case !validName(o.Key.Header):
		return invalid("Key.Header", "%q is not a header name", o.Key.Header)
	case o.Key.MinLen < 1:
		return invalid("Key.MinLen", "must be at least 1")
	case o.Key.MaxLen < o.Key.MinLen || o.Key.MaxLen > MaxKey:
		return invalid("Key.MaxLen", "must be Key.MinLen to %d", MaxKey)
	}
	for field, names := range map[string][]string{
		"Key.Aliases": o.Key.Aliases, "Response.KeepHeaders": o.Response.KeepHeaders, "Methods": o.Methods,
	} {
		if i := slices.IndexFunc(names, func(s string) bool { return !validName(s) }); i >= 0 {
			return invalid(field, "%q is not a name", names[i])
		}
	}
	if i := slices.IndexFunc(o.Methods, func(s string) bool { return s != strings.ToUpper(s) }); i >= 0 {
		return invalid("Methods", "%q must be upper case", o.Methods[i])
	}
	return nil
}

func (o *Options) checkTimes(invalid func(string, string, ...any) error) error {
	switch {
	case o.Limits.ExecTimeout <= 0:
		return invalid("Limits.ExecTimeout", "must be positive")
	case o.Limits.Lease <= 0:
		return invalid("Limits.Lease", "must be positive")
	case o.Limits.TTL < MinTTL || o.Limits.TTL > MaxTTL:
		return invalid("Limits.TTL", "is %v, and must be %v to %v", o.Limits.TTL, MinTTL, MaxTTL)
	case o.Limits.TTL < o.Limits.ExecTimeout:
		return invalid("Limits.TTL", "is %v, and must be at least Limits.ExecTimeout, %v: a success must not be forgotten when it commits", o.Limits.TTL, o.Limits.ExecTimeout)
	case o.Limits.TTL < o.Limits.Lease:
		return invalid("Limits.TTL", "is %v, and must be at least the lease, %v", o.Limits.TTL, o.Limits.Lease)
	case o.Limits.StoreTimeout <= 0:
		return invalid("Limits.StoreTimeout", "must be positive")
	case o.Limits.CompleteTimeout <= 0:
		return invalid("Limits.CompleteTimeout", "must be positive")
	case o.Limits.Wait < 0 || o.Limits.Wait > MaxWait:
		return invalid("Limits.Wait", "is %v, and must be at most %v", o.Limits.Wait, MaxWait)
	case o.Response.LocalReplays < 0:
		return invalid("Response.LocalReplays", "must not be negative")
	case o.Limits.MaxInFlightPerScope < 0:
		return invalid("Limits.MaxInFlightPerScope", "must not be negative")
	case o.Limits.FailedTTL < 0 || o.Limits.FailedTTL > MaxTTL:
		return invalid("Limits.FailedTTL", "is %v, and must be at most %v", o.Limits.FailedTTL, MaxTTL)
	case o.Limits.MaxUnknownPerScope < 0:
		return invalid("Limits.MaxUnknownPerScope", "must not be negative")
	case o.Limits.MaxAttempts < 0:
		return invalid("Limits.MaxAttempts", "must not be negative")
	}
	return nil
}

func (o *Options) checkLimits(invalid func(string, string, ...any) error) error {
	switch {
	case o.Limits.MaxRequestBody < 0:
		return invalid("Limits.MaxRequestBody", "must be positive")
	case o.Limits.MaxResponseBody < 0:
		return invalid("Limits.MaxResponseBody", "must be positive")
	case o.Limits.HardResponseLimit < o.Limits.MaxResponseBody:
		return invalid("Limits.HardResponseLimit", "must be at least Limits.MaxResponseBody")
	}
	for _, name := range o.Response.KeepHeaders {
		if neverStored(name) {
			return invalid("Response.KeepHeaders", "%s is never kept", name)
		}
		if slices.ContainsFunc(o.ownHeaders(), func(own string) bool { return strings.EqualFold(own, name) }) {
			return invalid("Response.KeepHeaders", "%s is set by the middleware alone, on replays too: leave it out", name)
		}
	}
	return nil
}

func (o *Options) checkAnswers(invalid func(string, string, ...any) error) error {
	switch {
	case !validName(o.Response.ReplayHeader):
		return invalid("Response.ReplayHeader", "%q is not a header name", o.Response.ReplayHeader)
	case !slices.Contains([]int{409, 423, 429}, o.Problems.InFlightStatus):
		return invalid("Problems.InFlightStatus", "is %d, and must be 409, 423 or 429", o.Problems.InFlightStatus)
	case !slices.Contains([]int{422, 409, 400}, o.Problems.MismatchStatus):
		return invalid("Problems.MismatchStatus", "is %d, and must be 422, 409 or 400", o.Problems.MismatchStatus)
	case !slices.Contains([]int{409, 422, 503}, o.Problems.UnknownFingerprintStatus):
		return invalid("Problems.UnknownFingerprintStatus", "is %d, and must be 409, 422 or 503", o.Problems.UnknownFingerprintStatus)
	}
	return nil
}

// routeLen is what ScopeByRoute adds to a namespace.
const routeLen = 33

// namespaceOf returns the namespace of r's record. A route is put into it as a
// digest: patterns may be longer than a namespace.
func (o *Options) namespaceOf(r *http.Request) string {
	if !o.ScopeByRoute {
		return o.Key.Namespace
	}
	d := digest{sha256.New()}
	d.writeStrings(r.Method, cmp.Or(r.Pattern, normalPath(r.URL.EscapedPath())))
	return o.Key.Namespace + ":" + hex.EncodeToString(d.Sum(nil)[:16])
}
