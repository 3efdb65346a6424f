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

// How often a request is sent at the most: by the first client of a saga, for about a minute,
// and by each of the others. With five of them a key has at most 32 requests, and 3 more
// if it is used again.
const (
	firstTries = 20
	copyTries  = 3
)

const (
	requestTimeout = 4 * time.Second
	dialTimeout    = 2 * time.Second
	minPause       = 50 * time.Millisecond // before the second try, doubled with each
	maxPause       = 4 * time.Second
	unsaidPause    = 400 * time.Millisecond // at the most, where nobody has heard the request
	maxAnswer      = 1 << 20                // bytes
)

// Patience is how long a client goes on with one request at the most, all its tries taken
// together.
const Patience = firstTries * (requestTimeout + maxPause)

// newClient returns a client that sends nothing again by itself, for that would be a request
// which no Op tells of.
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

// A request is what a client insists on.
type request struct {
	saga         *saga
	client       int
	method, path string
	body         []byte
	tries        int
}

// An answer is what a request has come to.
type answer struct {
	id     string
	final  bool
	unsaid bool // nobody has heard the request: it was not a try
}

// requestUntilAnswered sends a request until it is answered for good, to the processes of the service in
// turn, and with a longer pause each time.
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

// sendRequest makes one request, which is one Op.
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
	hr.GetBody = nil // or net/http would send it again on its own, because of the key
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

// A verdict is what is read of a body, whichever it is.
type verdict struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	Code string `json:"code"`
}

// judgeReply says in op what became of a request.
func judgeReply(op *record.Op, r reply, err error) answer {
	if err != nil {
		op.Outcome, op.Err = record.Unknown, err.Error()
		var network *net.OpError
		if errors.As(err, &network) && network.Op == "dial" && !errors.Is(err, context.DeadlineExceeded) {
			op.Outcome = record.Refused // nobody has heard it
			return answer{unsaid: true}
		}
		return answer{}
	}
	op.Leak = strings.Join(record.LeakedNames(r.body), " and ")
	var v verdict
	_ = json.Unmarshal(r.body, &v) // whoever stands in between may answer in HTML
	op.Status, op.Reply, op.Replay = r.status, digestReply(r), r.header.Get("Idempotent-Replayed") == "true"
	if r.status >= http.StatusBadRequest {
		op.Problem = v.Type
	}
	switch {
	case r.status < http.StatusMultipleChoices:
		op.Outcome, op.ID = record.OK, v.ID
		return answer{id: v.ID, final: true}
	case r.status == http.StatusServiceUnavailable && strings.HasSuffix(v.Type, ":starting"):
		op.Outcome = record.Refused // nobody is there yet to hear it
		return answer{unsaid: true}
	case r.status >= http.StatusInternalServerError || inDoubt[v.Code]:
		op.Outcome = record.Unknown
		return answer{final: inDoubt[v.Code]}
	default:
		op.Outcome = record.Refused
		return answer{final: v.Code != "in-progress" && r.status != http.StatusTooManyRequests}
	}
}

// inDoubt are the problems by which a request had, or may have had, its effect, and of
// which another try says no more.
var inDoubt = map[string]bool{"outcome-unknown": true, "response-not-retained": true}

// stored are the headers that are kept with a response: those of package idemkey, but for
// Cache-Control, which a replay is given if the response had none.
var stored = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location", "Location",
	"Etag", "Last-Modified", "Link", "Vary", "Deprecation", "Sunset",
}

// digestReply is the same for two responses if a client cannot tell the one from the other but by
// its date and the mark of a replay.
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
