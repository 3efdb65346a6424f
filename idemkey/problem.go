package idemkey

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// The codes of the problems that the middleware answers with.
const (
	CodeKeyMissing       = "key-missing"
	CodeKeyInvalid       = "key-invalid"
	CodeBodyUnreadable   = "body-unreadable"
	CodeScopeMissing     = "scope-missing"
	CodeBodyTooLarge     = "body-too-large"
	CodeKeyReused        = "key-reused"
	CodeInProgress       = "in-progress"
	CodeOutcomeUnknown   = "outcome-unknown"
	CodeKeyExpired       = "key-expired"
	CodeNotRetained      = "response-not-retained"
	CodeCommitFailed     = "commit-failed"
	CodeTxMisuse         = "tx-misuse"
	CodeRecordCorrupt    = "record-corrupt"
	CodeResponseTooLarge = "response-too-large"
	CodeInternal         = "internal"
	CodeStoreUnavailable = "store-unavailable"
	CodeCapacity         = "capacity"
	CodeExecTimeout      = "execution-timeout"
	CodeTxConflict       = "tx-conflict"
	CodeUnverified       = "outcome-unverified"

	// CodeUnknownLimit: the caller has [Limits].MaxUnknownPerScope requests whose outcome is not known. New keys wait until
	// somebody has decided about some of them; known keys are answered.
	CodeUnknownLimit = "unknown-limit"

	// CodeRecordHidden: the database hides the record by row-level security, or the handler has removed it. The log says
	// which. Nothing was committed.
	CodeRecordHidden = "record-hidden"

	// CodeFingerprintUnknown: the service has changed [FingerprintOptions] and cannot tell whether
	// the request is the one that the key was first used for. The client has done nothing wrong.
	CodeFingerprintUnknown = "fingerprint-unknown"

	// CodeScopeInvalid: Options.Scope returned more than [MaxScope] bytes, or one that is no printable
	// UTF-8. The log says which.
	CodeScopeInvalid = "scope-invalid"

	// CodeBodyConsumed: middleware outside of [Middleware.Handler] has read the request's body. The
	// service must restore it, or mount [Middleware.Outer].
	CodeBodyConsumed = "body-consumed"

	// CodeNotIdempotent: the handler needs the transaction of an idempotent request, but Options.Methods or Options.Skip
	// passes the request by. The detail and the log say which.
	CodeNotIdempotent = "not-idempotent"

	// CodeMountedTwice: the request came through two [Middleware.Handler] that claim the same key.
	CodeMountedTwice = "mounted-twice"
)

// retrySoon is the Retry-After of problems whose duration is not known.
const retrySoon = time.Second

// maxRetryAfter caps the Retry-After header.
const maxRetryAfter = 30 * time.Second

// A Problem is an error response by RFC 9457. A handler that returns one, by
// idempg.HandleTx for instance, is answered with it.
type Problem struct {
	Type           string `json:"type"` // default: made from Code
	Title          string `json:"title"`
	Status         int    `json:"status"`
	Detail         string `json:"detail,omitempty"`
	Instance       string `json:"instance,omitempty"` // default: a new urn:uuid
	Code           string `json:"code"`
	Retryable      bool   `json:"retryable"`                 // the same request may succeed later
	SameKey        bool   `json:"same_key"`                  // and must then carry the same key
	OriginalStatus int    `json:"original_status,omitempty"` // of a response that was not kept

	RetryAfter time.Duration `json:"-"` // sent as a header; 0: none
	DocsURL    string        `json:"-"` // sent as a Link
}

// Error is for the log; clients get the problem itself.
func (p *Problem) Error() string { return fmt.Sprintf("%d %s: %s", p.Status, p.Code, p.Title) }

// retrySameKey is the detail of problems that a retry may overcome.
const retrySameKey = "Retry with the same key."

// misconfigured is the detail of problems that no retry overcomes. The log has the reason.
const misconfigured = "The service is configured wrongly. The request was not run."

// problems are the fixed parts, by code.
var problems = map[string]Problem{
	CodeKeyMissing:     {Status: 400, Title: "Idempotency key missing", Detail: "This operation requires an idempotency key."},
	CodeKeyInvalid:     {Status: 400, Title: "Idempotency key invalid", Detail: "Send one key, of the documented length and characters."},
	CodeBodyUnreadable: {Status: 400, Title: "Request body unreadable", Detail: "The request body could not be read to its end."},
	CodeScopeMissing:   {Status: 401, Title: "Caller unknown", Detail: "An idempotency key needs an authenticated caller."},
	CodeBodyTooLarge:   {Status: 413, Title: "Request body too large", Detail: "The request body is over the limit of this operation."},
	CodeKeyReused:      {Status: 422, Title: "Idempotency key reused", Detail: "The key was first used for a different request. Use a new key."},
	CodeInProgress:     {Status: 409, Title: "Request in progress", Detail: "A request with this key is being processed.", Retryable: true, SameKey: true, RetryAfter: retrySoon},
	CodeOutcomeUnknown: {Status: 409, Title: "Outcome unknown", Detail: "The request was attempted and its outcome is not known. It will not be run again automatically."},
	CodeKeyExpired:     {Status: 410, Title: "Idempotency key expired", Detail: "The record of this key has expired. Use a new key."},
	CodeNotRetained:    {Status: 410, Title: "Response not retained", Detail: "The request was processed and its response was not kept."},
	CodeCommitFailed:   {Status: 500, Title: "Commit failed", Detail: retrySameKey, Retryable: true, SameKey: true},
	CodeTxMisuse:       {Status: 500, Title: "Internal error", Detail: "The request was ended irregularly and will not be run again."},
	CodeRecordCorrupt:  {Status: 500, Title: "Stored response unreadable", Detail: "The request was processed and its stored response cannot be read."},
	CodeRecordHidden: {Status: 500, Title: "Record unavailable", Detail: "The service cannot use the record of the key. Nothing was committed. " + retrySameKey,
		Retryable: true, SameKey: true},
	CodeFingerprintUnknown: {Status: 409, Title: "Request cannot be compared", Detail: "The service cannot tell whether the key was first used for this request. " +
		"It was not run now and may have run before: do not repeat it with another key."},
	CodeScopeInvalid:     {Status: 500, Title: "Internal error", Detail: misconfigured},
	CodeBodyConsumed:     {Status: 500, Title: "Internal error", Detail: misconfigured},
	CodeNotIdempotent:    {Status: 500, Title: "Internal error", Detail: misconfigured},
	CodeMountedTwice:     {Status: 500, Title: "Internal error", Detail: misconfigured},
	CodeResponseTooLarge: {Status: 500, Title: "Response too large", Detail: "The response is over the limit of this operation."},
	CodeInternal:         {Status: 500, Title: "Internal error", Detail: retrySameKey, Retryable: true, SameKey: true},
	CodeStoreUnavailable: {Status: 503, Title: "Store unavailable", Detail: retrySameKey, Retryable: true, SameKey: true, RetryAfter: retrySoon},
	CodeCapacity:         {Status: 503, Title: "Too many requests in flight", Detail: retrySameKey, Retryable: true, SameKey: true, RetryAfter: retrySoon},
	CodeExecTimeout:      {Status: 503, Title: "Execution timed out", Detail: retrySameKey, Retryable: true, SameKey: true, RetryAfter: retrySoon},
	CodeTxConflict:       {Status: 503, Title: "Transaction conflict", Detail: retrySameKey, Retryable: true, SameKey: true, RetryAfter: retrySoon},
	CodeUnknownLimit: {Status: 503, Title: "Too many unknown outcomes", Detail: "The outcomes of too many earlier requests are not known. " + retrySameKey,
		Retryable: true, SameKey: true, RetryAfter: maxRetryAfter},
	CodeUnverified: {Status: 503, Title: "Outcome unverified", Detail: "Retry with the same key to learn the outcome.", Retryable: true, SameKey: true, RetryAfter: retrySoon},
}

// newProblem returns a copy of the problem that code names.
func newProblem(code string) *Problem {
	p := problems[code]
	p.Code = code
	return &p
}

// A ProblemWriter answers with p. It writes header, status and body. All members of
// p are set. The key is none of them, and must not be echoed.
type ProblemWriter func(w http.ResponseWriter, r *http.Request, p *Problem)

// WriteProblem answers in application/problem+json.
func WriteProblem(w http.ResponseWriter, _ *http.Request, p *Problem) {
	setProblemHeader(w.Header(), "application/problem+json; charset=utf-8", p)
	writeJSON(w, p.Status, p)
}

// WritePlainError answers {"error": "…", "code": "…"} in application/json.
func WritePlainError(w http.ResponseWriter, _ *http.Request, p *Problem) {
	setProblemHeader(w.Header(), "application/json; charset=utf-8", p)
	writeJSON(w, p.Status, struct {
		Error string `json:"error"`
		Code  string `json:"code"`
	}{p.Title, p.Code})
}

func setProblemHeader(h http.Header, contentType string, p *Problem) {
	h.Set("Content-Type", contentType)
	h.Set("Content-Language", "en")
	h.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(retrySeconds(p.RetryAfter)))
	}
	if p.DocsURL != "" {
		h.Add("Link", "<"+p.DocsURL+`>; rel="describedby"; type="text/html"`)
	}
}

// retrySeconds rounds up: a client that retries too early gets the same answer.
func retrySeconds(d time.Duration) int {
	d = min(max(d, retrySoon), maxRetryAfter)
	return int((d + time.Second - 1) / time.Second)
}

// writeJSON ignores a failed write: the client has disconnected, and may retry.
func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err) // structs of strings, numbers and booleans
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}

// completeProblem returns a copy of p with the defaults of its empty members.
func (o *Options) completeProblem(p *Problem) *Problem {
	c := *p
	switch {
	case c.Type != "":
	case o.Problems.TypeBase != "":
		c.Type = o.Problems.TypeBase + c.Code
	case o.Problems.DocsURL != "":
		c.Type = o.Problems.DocsURL + "#" + c.Code
	default:
		c.Type = "urn:idemkey:problem:" + c.Code
	}
	if c.Status < 400 || c.Status > 599 {
		c.Status = http.StatusInternalServerError
	}
	if c.Title == "" {
		c.Title = http.StatusText(c.Status)
	}
	if c.Instance == "" {
		c.Instance = "urn:uuid:" + newUUID()
	}
	if c.DocsURL == "" {
		c.DocsURL = o.Problems.DocsURL
	}
	return &c
}

// newUUID returns a random UUID, version 4.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
