package payment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/sagamill/sagamill/consumer"
)

// maxAnswer is how many bytes of the gateway's answer are read.
const maxAnswer = 64 << 10

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

// A DeclinedError reports that the gateway declined to charge the card.
type DeclinedError struct{ Reason string }

// Error includes the gateway's reason.
func (e *DeclinedError) Error() string { return "payment: card declined: " + e.Reason }

// A Gateway is a client of the payment gateway at URL.
type Gateway struct {
	URL    string
	Client *http.Client
	Plain  bool // the gateway moves money at each request, regardless of the key
}

// Charge charges a card, once for each key unless the gateway is plain. After an error other than a
// [*DeclinedError] or a [consumer.NotDone], the card may have been charged.
func (g Gateway) Charge(ctx context.Context, key string, c Charge) error {
	return g.postRequest(ctx, "/charges", key, c)
}

// Refund pays an order's charge back, once for each key unless the gateway is plain. After an error
// other than a [consumer.NotDone], it may have been paid back.
func (g Gateway) Refund(ctx context.Context, key string, r Refund) error {
	return g.postRequest(ctx, "/refunds", key, r)
}

// FindCharge reports whether the gateway has charged under key, and how much.
func (g Gateway) FindCharge(ctx context.Context, key string) (amount int64, found bool, err error) {
	return g.findMovement(ctx, "/charges/"+key)
}

// FindRefund reports whether the gateway has refunded under key, and how much.
func (g Gateway) FindRefund(ctx context.Context, key string) (amount int64, found bool, err error) {
	return g.findMovement(ctx, "/refunds/"+key)
}

func (g Gateway) postRequest(ctx context.Context, path, key string, body any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return markHopeless(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+path, bytes.NewReader(encoded))
	if err != nil {
		return markHopeless(fmt.Errorf("payment: gateway: %w", err))
	}
	r.GetBody = nil // because of the key, net/http would repeat the request
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	status, text, err := g.sendRequest(r)
	if err != nil {
		return err
	}
	return judgeAnswer(status, text)
}

func (g Gateway) findMovement(ctx context.Context, path string) (amount int64, found bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL+path, nil)
	if err != nil {
		return 0, false, fmt.Errorf("payment: gateway: %w", err)
	}
	status, text, err := g.sendRequest(r)
	if err != nil {
		return 0, false, err
	}
	var answer struct {
		Amount int64
		Code   string
	}
	err = json.Unmarshal(text, &answer)
	switch {
	case status == http.StatusOK && err == nil && answer.Amount > 0:
		return answer.Amount, true, nil
	case status == http.StatusNotFound && answer.Code == "movement-unknown": // a 404 of a proxy has no such code
		return 0, false, nil
	default:
		return 0, false, fmt.Errorf("payment: gateway: %d %s", status, answer.Code)
	}
}

func (g Gateway) sendRequest(r *http.Request) (status int, text []byte, err error) {
	answer, err := g.Client.Do(r)
	var network *net.OpError
	switch {
	case errors.As(err, &network) && network.Op == "dial":
		return 0, nil, consumer.NotDone(fmt.Errorf("payment: gateway: %w", err)) // the gateway received nothing
	case err != nil:
		return 0, nil, fmt.Errorf("payment: gateway: %w", err)
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return 0, nil, fmt.Errorf("payment: gateway: %w", err)
	}
	return answer.StatusCode, text, nil
}

// The codes of problems by which the gateway itself says that it has done nothing. A request with a
// final problem never succeeds. A request with a passing problem may succeed later.
var (
	final = map[string]bool{
		"movement-invalid": true, "charge-unknown": true, "over-refund": true,
		"key-reused": true, "key-invalid": true, "key-missing": true, "body-too-large": true,
	}
	passing = map[string]bool{"try-again": true, "starting": true}
)

// judgeAnswer returns nil if the gateway has done what the request asks for, and a [*DeclinedError]
// if the card was declined. Any other error says whether the request may be repeated.
func judgeAnswer(status int, body []byte) error {
	var problem struct{ Code, Detail string }
	_ = json.Unmarshal(body, &problem) // a proxy may answer in HTML, and then there is no code
	err := fmt.Errorf("payment: gateway: %d %s", status, problem.Code)
	switch {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusPaymentRequired:
		return &DeclinedError{Reason: problem.Detail}
	case final[problem.Code]:
		return markHopeless(err)
	case passing[problem.Code]:
		return consumer.NotDone(err)
	default: // an error of the gateway or of a proxy, which may pass
		return err
	}
}

// markHopeless marks the error of a request that did nothing and cannot succeed.
func markHopeless(err error) error { return consumer.Terminal(consumer.NotDone(err)) }
