package lineartest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// client opens a connection for each request. A transport with a connection to a
// dead instance would send a request with an Idempotency-Key again, without a word
// to the caller, and the history would have one operation for two.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// unsent is no [Kind] of the history: the instance was not running.
const unsent Kind = "unsent"

// sendKeyed sends one keyed request, waits for the time of patience, and returns what the client learned.
func sendKeyed(url, key, body string, patience time.Duration) (kind Kind, answer string, stalled bool) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return Absurd, err.Error(), false
	}
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Content-Type", "text/plain")
	resp, err := client.Do(req)
	if refused := (*net.OpError)(nil); errors.As(err, &refused) && refused.Op == "dial" {
		return unsent, "", false
	}
	if err != nil {
		return Unknown, "", false
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return Unknown, "", false
	}
	kind, answer = classifyAnswer(resp, string(content))
	return kind, answer, resp.Header.Get(stalledHeader) != ""
}

// classifyAnswer returns the Kind of an answer, with the response of a success.
func classifyAnswer(resp *http.Response, content string) (Kind, string) {
	answer := fmt.Sprintf("%d %s\n%s", resp.StatusCode, resp.Header.Get("Location"), content)
	switch {
	case resp.StatusCode == http.StatusCreated && resp.Header.Get("Idempotent-Replayed") == "true":
		return Replayed, answer
	case resp.StatusCode == http.StatusCreated:
		return Created, answer
	case resp.StatusCode == http.StatusUnprocessableEntity && strings.Contains(content, `"key-reused"`):
		return Mismatch, ""
	case resp.StatusCode == http.StatusConflict && strings.Contains(content, `"in-progress"`):
		return InFlight, ""
	case resp.StatusCode >= http.StatusInternalServerError:
		return Unknown, ""
	}
	return Absurd, answer
}
