package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/backoff"
)

// How often a request is sent: firstTries by the first client of a saga, for about a minute, and copyTries by
// each of the others. With five clients a key gets at most 32 requests, and 3 more if it is used again.
const (
	firstTries = 20
	copyTries  = 3
)

const (
	requestTimeout = 4 * time.Second
	dialTimeout    = 2 * time.Second
	minPause       = 50 * time.Millisecond // before the second try, doubled with each
	maxPause       = 4 * time.Second
	unsaidPause    = 400 * time.Millisecond // at most, after a request that no process received
	maxAnswer      = 1 << 20                // bytes
)

// Patience is the most time that a client spends on one request, with all its tries.
const Patience = firstTries * (requestTimeout + maxPause)

// newClient returns a client that never resends a request on its own, because such a request would have no Op.
func newClient(clients int) *http.Client {
	return &http.Client{
		Timeout: requestTimeout,
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			MaxIdleConnsPerHost: clients * 2,
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A request is one request that a client repeats until it has an answer.
type request struct {
	saga         *saga
	client       int
	method, path string
	body         []byte
	tries        int
}

// An answer is the result of a request.
type answer struct {
	id     string
	final  bool
	unsaid bool // no process received the request, so it does not count as a try
}

// requestUntilAnswered sends a request until it has a final answer. It uses the service's processes in turn and
// doubles the pause each time.
func (l *Load) requestUntilAnswered(ctx context.Context, r request) (a answer) {
	urls := l.urls[r.saga.kind.Saga]
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for try, heard := 0, 0; heard < r.tries; try++ {
		if try > 0 {
			d := min(minPause<<min(try-1, 10), maxPause)
			if a.unsaid {
				d = min(d, unsaidPause)
			}
			_ = backoff.Sleep(ctx, d/2+rand.N(d))
		}
		if ctx.Err() != nil {
			return a
		}
		if a = l.sendRequest(ctx, r, urls[(r.client+try)%len(urls)]); a.final {
			return a
		}
		if !a.unsaid {
			heard++
		}
	}
	return a
}

// sendRequest sends one request and records it as one Op.
func (l *Load) sendRequest(ctx context.Context, r request, url string) answer {
	op := record.Op{
		Saga: r.saga.kind.Saga, Kind: r.saga.kind.Name, Method: r.method, Tenant: r.saga.tenant, Key: r.saga.key,
		Body: record.DigestOf(r.body), Client: r.client,
	}
	if len(r.saga.kind.Ends) == 1 {
		op.Want = r.saga.kind.Ends[0]
	}
	if r.saga.kind.Saga == record.Order {
		op.Amount = r.saga.amount
	}
	l.open.Add(1)
	op.Call = l.opts.Now()
	reply, err := l.exchange(ctx, r, url)
	op.Return = l.opts.Now()
	l.open.Add(-1)
	a := judgeReply(&op, reply, err)
	l.opts.Ops.AddRecord(op)
	return a
}

// A reply is an HTTP response that was read to its end.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (l *Load) exchange(ctx context.Context, r request, url string) (reply, error) {
	hr, err := http.NewRequestWithContext(ctx, r.method, url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return reply{}, err
	}
	hr.GetBody = nil // otherwise net/http would resend it on its own, because of the key
	hr.Header.Set("Authorization", "Bearer "+r.saga.tenant)
	if r.method == http.MethodPost {
		hr.Header.Set("Idempotency-Key", r.saga.key)
		hr.Header.Set("Content-Type", "application/json")
	}
	response, err := l.client.Do(hr)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	return reply{response.StatusCode, response.Header, body}, err
}

// A verdict holds the fields that are read of a body, of either kind.
type verdict struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	Code string `json:"code"`
}

// judgeReply sets the outcome of a request in op and returns the answer.
func judgeReply(op *record.Op, r reply, err error) answer {
	if err != nil {
		op.Outcome, op.Err = record.Unknown, err.Error()
		var network *net.OpError
		if errors.As(err, &network) && network.Op == "dial" && !errors.Is(err, context.DeadlineExceeded) {
			op.Outcome = record.Refused // no process received it
			return answer{unsaid: true}
		}
		return answer{}
	}
	op.Leak = strings.Join(record.LeakedNames(r.body), " and ")
	var v verdict
	_ = json.Unmarshal(r.body, &v) // a proxy may answer in HTML
	op.Status, op.Reply, op.Replay = r.status, digestReply(r), r.header.Get("Idempotent-Replayed") == "true"
	if r.status >= http.StatusBadRequest {
		op.Problem = v.Type
	}
	switch {
	case r.status < http.StatusMultipleChoices:
		op.Outcome, op.ID = record.OK, v.ID
		return answer{id: v.ID, final: true}
	case r.status == http.StatusServiceUnavailable && strings.HasSuffix(v.Type, ":starting"):
		op.Outcome = record.Refused // no process listens yet
		return answer{unsaid: true}
	case r.status >= http.StatusInternalServerError || inDoubt[v.Code]:
		op.Outcome = record.Unknown
		return answer{final: inDoubt[v.Code]}
	default:
		op.Outcome = record.Refused
		return answer{final: v.Code != "in-progress" && r.status != http.StatusTooManyRequests}
	}
}

// inDoubt are the problems of requests that had, or may have had, their effect. Another try tells no more.
var inDoubt = map[string]bool{"outcome-unknown": true, "response-not-retained": true}

// stored are the headers that package idemkey keeps with a response, except Cache-Control: a replay gets one if
// the response had none.
var stored = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location", "Location",
	"Etag", "Last-Modified", "Link", "Vary", "Deprecation", "Sunset",
}

// digestReply returns a digest of a response without its date and its mark as a replay. Two responses have the
// same digest if a client sees no other difference.
func digestReply(r reply) string {
	var all bytes.Buffer
	all.WriteString(strconv.Itoa(r.status))
	for _, name := range stored {
		if values := r.header.Values(name); len(values) > 0 {
			all.WriteString("\n" + name + ": " + strings.Join(slices.Sorted(slices.Values(values)), ", "))
		}
	}
	all.WriteString("\n\n")
	all.Write(r.body)
	return record.DigestOf(all.Bytes())
}
