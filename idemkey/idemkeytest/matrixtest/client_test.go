package matrixtest

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/idemkey"
)

var quiet = slog.New(slog.DiscardHandler)

// client opens a connection for each request: a transport that has one sends a
// request with an Idempotency-Key again by itself when that breaks.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// broken is what a client sees whose connection ended without an answer.
const broken = "broken"

// An answer is what a client saw.
type answer struct {
	text    string // status, and the problem's code or "replay"
	status  int
	header  http.Header
	body    string
	problem idemkey.Problem // if it was one
}

// post sends body to url under key, with header lines as name, value, ….
func post(ctx context.Context, url, key string, body io.Reader, header ...string) answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return answer{text: err.Error()}
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{text: broken}
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{text: broken}
	}
	return read(resp.StatusCode, resp.Header, string(content))
}

func read(status int, header http.Header, body string) answer {
	a := answer{text: strconv.Itoa(status), status: status, header: header, body: body}
	if strings.HasPrefix(header.Get("Content-Type"), "application/problem+json") {
		if err := json.Unmarshal([]byte(body), &a.problem); err != nil {
			a.text += " unreadable"
		}
		a.text += " " + a.problem.Code
	}
	if header.Get("Idempotent-Replayed") == "true" {
		a.text += " replay"
	}
	return a
}
