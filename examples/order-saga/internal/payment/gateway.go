package payment

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sagamill/sagamill/consumer"
)

// gatewayTimeout bounds one call, below the step's own timeout.
const gatewayTimeout = 8 * time.Second

// A Charge is the body of POST /charges.
type Charge struct {
	OrderID  string `json:"order_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Card     string `json:"card"`
}

// A Refund is the body of POST /refunds.
type Refund struct {
	OrderID string `json:"order_id"`
	Amount  int64  `json:"amount"`
}

// A DeclinedError is the gateway's answer that the card may not be charged.
type DeclinedError struct{ Reason string }

// Error says why.
func (e *DeclinedError) Error() string { return "payment: card declined: " + e.Reason }

// A Gateway is a client of the payment gateway at URL.
type Gateway struct {
	URL    string
	Client *http.Client
}

// Charge charges a card, once for each key. An error other than a
// [*DeclinedError] leaves open whether it did.
func (g Gateway) Charge(ctx context.Context, key string, c Charge) error {
	return g.post(ctx, "/charges", key, c)
}

// Refund pays an order's charge back, once for each key.
func (g Gateway) Refund(ctx context.Context, key string, r Refund) error {
	return g.post(ctx, "/refunds", key, r)
}

func (g Gateway) post(ctx context.Context, path, key string, body any) error {
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	encoded, err := json.Marshal(body)
	if err != nil {
		return consumer.Terminal(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+path, bytes.NewReader(encoded))
	if err != nil {
		return consumer.Terminal(fmt.Errorf("payment: gateway: %w", err))
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	answer, err := g.Client.Do(r)
	if err != nil {
		return fmt.Errorf("payment: gateway: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("payment: gateway: %w", err)
	}
	return judge(answer.StatusCode, text)
}

// final are the problems by which the gateway itself says that the request will
// never do.
var final = map[string]bool{
	"movement-invalid": true, "charge-unknown": true, "over-refund": true,
	"key-reused": true, "key-invalid": true, "key-missing": true, "body-too-large": true,
}

// judge says what an answer means: done, declined, come again, or hopeless.
func judge(status int, body []byte) error {
	var problem struct{ Code, Detail string }
	_ = json.Unmarshal(body, &problem) // whoever stands between may answer in HTML
	switch {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusPaymentRequired:
		return &DeclinedError{Reason: problem.Detail}
	case final[problem.Code]:
		return consumer.Terminal(fmt.Errorf("payment: gateway: %d %s", status, problem.Code))
	default: // of the gateway, or of whoever stands in between: it may be mended
		return fmt.Errorf("payment: gateway: %d %s", status, problem.Code)
	}
}
