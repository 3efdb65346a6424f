package cookbook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
)

// An event that is sent again is handled once, an old one changes nothing, and a forged one is refused.
func TestWebhook(t *testing.T) {
	t.Parallel()
	s := start(t, sagamill.Config{Steps: []consumer.Step{NoteCharge}})
	hook := &Webhook{DB: s.Database(), Writer: s.Writer(), Wake: s.Relay().Wake, Secret: []byte("secret")}
	post := func(body, secret string) int {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(body))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/provider", strings.NewReader(body))
		r.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
		w := httptest.NewRecorder()
		hook.ServeHTTP(w, r)
		return w.Code
	}
	const (
		captured = `{"id":"evt-2","reference":"order-1","status":"captured","at":"2026-11-02T10:00:00Z"}`
		pending  = `{"id":"evt-1","reference":"order-1","status":"pending","at":"2026-11-01T10:00:00Z"}`
		forged   = `{"id":"evt-3","reference":"order-1","status":"refunded","at":"2026-11-03T10:00:00Z"}`
	)
	for i, body := range []string{captured, pending, captured} {
		if status := post(body, "secret"); status != http.StatusNoContent {
			t.Errorf("%s: %d, want 204", body, status)
		}
		awaitSteps(t, s, fmt.Sprintf("note-charge %d", min(i+1, 2)))
	}
	if status := post(forged, "guess"); status != http.StatusUnauthorized {
		t.Errorf("a forged event: %d, want 401", status)
	}
	if status := post(`{"id":""}`, "secret"); status != http.StatusBadRequest {
		t.Errorf("an event without an id: %d, want 400", status)
	}
	await(t, "duplicate", func() bool { return s.Consumer().Counters().Steps[0].Outcomes[consumer.OutcomeDuplicate] == 1 })
	if got := readText(t, s, "SELECT string_agg(reference || ' ' || status, ', ') FROM shop.charge"); got != "order-1 captured" {
		t.Errorf("charges: %s, want order-1 captured", got)
	}
}
