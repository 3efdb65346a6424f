package cookbook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// A ChargeEvent is what the payment provider sends. It sends an event again until it gets a 2xx.
type ChargeEvent struct {
	ID        string    `json:"id"`        // the same each time that this event is sent
	Reference string    `json:"reference"` // of the charge, as we have named it
	Status    string    `json:"status"`
	At        time.Time `json:"at"`
}

const maxWebhook = 64 << 10 // bytes

// A Webhook receives the events of the payment provider. It stores each one as a message, and does nothing else.
type Webhook struct {
	DB     *pgxpool.Pool
	Writer *outbox.Writer
	Wake   func() // of the relay
	Secret []byte // shared with the provider
}

// ServeHTTP answers 204 once the event is stored as a message. An event that is sent again becomes another message,
// which the step takes for a duplicate.
func (h *Webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWebhook))
	if err != nil {
		http.Error(w, "the event is too long", http.StatusRequestEntityTooLarge)
		return
	}
	if !h.isGenuine(body, r.Header.Get("X-Signature")) {
		http.Error(w, "the signature is wrong", http.StatusUnauthorized)
		return
	}
	var event ChargeEvent
	if err := json.Unmarshal(body, &event); err != nil || event.ID == "" || event.Reference == "" {
		http.Error(w, "an event has an id and a reference", http.StatusBadRequest)
		return
	}
	err = pgx.BeginFunc(r.Context(), h.DB, func(tx pgx.Tx) error {
		return h.Writer.Write(r.Context(), tx, outbox.Message{
			Topic: "charge.changed", Scope: "provider", Key: event.ID, Step: "note-charge", Payload: outbox.JSON(event),
		})
	})
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // the provider sends the event again
		return
	}
	h.Wake()
	w.WriteHeader(http.StatusNoContent)
}

// isGenuine reports whether signature is the HMAC of body.
func (h *Webhook) isGenuine(body []byte, signature string) bool {
	got, err := hex.DecodeString(signature)
	mac := hmac.New(sha256.New, h.Secret)
	mac.Write(body)
	return err == nil && hmac.Equal(got, mac.Sum(nil))
}

// NoteCharge runs once for each event, however often the provider has sent it.
var NoteCharge = consumer.Step{Name: "note-charge", Action: consumer.On("charge.changed", noteCharge)}

// noteCharge stores the newest status. Events arrive in any order, so an older one changes nothing.
func noteCharge(ctx context.Context, tx pgx.Tx, in consumer.Message[ChargeEvent], _ consumer.Emit) error {
	_, err := tx.Exec(ctx, `
INSERT INTO shop.charge AS c (reference, status, at) VALUES ($1, $2, $3)
ON CONFLICT (reference) DO UPDATE SET status = excluded.status, at = excluded.at WHERE c.at < excluded.at`,
		in.Body.Reference, in.Body.Status, in.Body.At)
	return err
}
