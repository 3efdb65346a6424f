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

// A DeclinedError is the gateway's answer that the card may not be charged.
type DeclinedError struct{ Reason string }

// Error says why.
func (e *DeclinedError) Error() string { return "payment: card declined: " + e.Reason }

// A Gateway is a client of the payment gateway at URL.
type Gateway struct {
	URL    string
	Client *http.Client
	Plain  bool // it does what it is told each time, whatever the key
}

// Charge charges a card, once for each key unless the gateway is plain. An
// error other than a [*DeclinedError] or a [consumer.NotDone] leaves open whether
// it did.
func (g Gateway) Charge(ctx context.Context, key string, c Charge) error {
	return g.postRequest(ctx, "/charges", key, c)
}

// Refund pays an order's charge back, as Charge charges.
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
	r.GetBody = nil // or net/http would send it again on its own, because of the key
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
	case status == http.StatusNotFound && answer.Code == "movement-unknown": // not any 404 of whoever stands in between
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
		return 0, nil, consumer.NotDone(fmt.Errorf("payment: gateway: %w", err)) // it has heard nothing
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

// The problems by which the gateway itself says that it has done nothing: with
// final ones the request will never do, with passing ones it may come again.
var (
	final = map[string]bool{
		"movement-invalid": true, "charge-unknown": true, "over-refund": true,
		"key-reused": true, "key-invalid": true, "key-missing": true, "body-too-large": true,
	}
	passing = map[string]bool{"try-again": true, "starting": true}
)

// judgeAnswer says what an answer means: done, declined, come again, or hopeless.
func judgeAnswer(status int, body []byte) error {
	var problem struct{ Code, Detail string }
	_ = json.Unmarshal(body, &problem) // whoever stands between may answer in HTML
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
	default: // of the gateway, or of whoever stands in between: it may be mended
		return err
	}
}

// markHopeless marks the error of a request that did nothing and never will.
func markHopeless(err error) error { return consumer.Terminal(consumer.NotDone(err)) }
