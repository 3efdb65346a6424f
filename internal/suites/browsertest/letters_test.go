package browsertest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// An order is what shops send to payments.
type order struct {
	Amount int    `json:"amount"`
	Card   string `json:"card"`
}

// payOrders returns messages of orders, with the keys order-001 and so on.
func payOrders(topic, kind string, n int) (messages []outbox.Message) {
	for i := range n {
		messages = append(messages, outbox.Message{Topic: topic, Type: kind, Scope: "acme", Key: fmt.Sprintf("order-%03d", i+1), Step: "pay",
			Payload: encode(order{Amount: 1250, Card: "tok_ok"})})
	}
	return messages
}

// letters counts the dead letters of payments.
const letters = "SELECT count(*) FROM payments.parked WHERE state = 'dead'"

// A message cannot be handled: its sender wrote a number as a text. A person looks at its letter, mends the payload, sees
// the difference, and redrives it.
func TestAPoisonMessageIsMendedAndRedriven(t *testing.T) {
	t.Parallel()
	w := newTown(t, "shop", "payments")
	pay := consumer.Step{Name: "pay", Action: consumer.On("order.created", func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], _ consumer.Emit) error {
		return note(ctx, tx, "payments", in.Key, fmt.Sprintf("paid %d", in.Body.Amount))
	})}
	w.serve(sagamill.Config{Name: "payments", Steps: []consumer.Step{pay}})
	shop, _ := w.serve(sagamill.Config{Name: "shop"})
	messages := payOrders("order.created", "", 3)
	messages[1].Payload = []byte(`{"amount":"12,50","card":"tok_ok"}`)
	w.write(shop, messages...)
	w.awaitQuery(letters, "1")
	w.awaitQuery("SELECT count(*) FROM payments.effect", "2")

	w.open("")
	w.see("Dead letters of steps wait for a person.")
	w.press("Dead letters of steps wait")
	w.press("order.created")
	w.press("message 1") // what cannot be read has no key
	w.see("12,50")
	w.screenshot("letter")
	w.press("Edit…")
	w.fill("Payload", "{\"amount\": 1250, \"card\": \"tok_ok\"}")
	w.press("Preview…")
	w.see("12,50")
	w.screenshot("edit")
	w.confirm(1)
	w.see("done by " + person)
	w.check(letters, "1")

	w.open("dead")
	w.press("Redrive…")
	w.confirm(1)
	w.see("Changed 1 of 1")
	w.screenshot("redriven")
	w.awaitQuery("SELECT count(*) FROM payments.effect", "3")
	w.check("SELECT what FROM payments.effect WHERE key = 'order-002'", "paid 1250")
	w.checkOnce("payments", 3)
	w.check(letters, "0")
	w.check("SELECT string_agg(who || ' ' || verb, ', ' ORDER BY id) FROM payments.operator_journal", "ann dead edit, ann dead redrive")
}

// A release of the consumer does not know a message. A person finds its dead letters in one group, and redrives them when the
// right release runs.
func TestLettersOfAWrongDeployAreRedriven(t *testing.T) {
	t.Parallel()
	w := newTown(t, "shop", "payments")
	stepOf := func(name, kind string) consumer.Step {
		in := consumer.On("order", func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], _ consumer.Emit) error {
			return note(ctx, tx, "payments", in.Key, name)
		})
		in.Type = kind
		return consumer.Step{Name: name, Action: in}
	}
	refund, pay := stepOf("refund", "order.cancelled"), stepOf("pay", "order.created")
	_, stopWrong := w.serve(sagamill.Config{Name: "payments", Steps: []consumer.Step{refund}})
	shop, _ := w.serve(sagamill.Config{Name: "shop"})
	w.write(shop, payOrders("order", "order.created", 7)...)
	w.awaitQuery(letters, "7")
	stopWrong()

	w.open("dead")
	w.see("7 messages in 1 group")
	w.see("type-unknown")
	w.screenshot("group")
	w.serve(sagamill.Config{Name: "payments", Steps: []consumer.Step{refund, pay}})
	w.press("Redrive…")
	w.screenshot("preview")
	w.confirm(7)
	w.see("Changed 7 of 7")
	w.screenshot("done")
	w.awaitQuery("SELECT count(*) FROM payments.effect WHERE what = 'pay'", "7")
	w.checkOnce("payments", 7)
	w.check(letters, "0")
	w.check("SELECT string_agg(DISTINCT who || ' ' || verb || ': ' || why, ', ') FROM payments.operator_journal", "ann dead redrive: "+why)
}

// A provider is an external system that charges each time it is called.
type provider struct {
	mu      sync.Mutex
	charges map[string]int
	away    atomic.Bool
}

// charge makes the charge and, during the outage, loses its answer.
func (p *provider) charge(_ context.Context, in consumer.Message[order], _ string) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away.Load() && in.Key > "order-002" {
		return 0, consumer.NotDone(errors.New("provider: connection refused"))
	}
	p.charges[in.Key]++
	if p.away.Load() {
		return 0, errors.New("provider: connection reset before the answer")
	}
	return in.Body.Amount, nil
}

// find looks for a charge. During the outage nobody answers.
func (p *provider) find(_ context.Context, in consumer.Message[order], _ string) (int, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away.Load() {
		return 0, false, errors.New("provider: connection refused")
	}
	return in.Body.Amount, p.charges[in.Key] > 0, nil
}

// A provider is away. Some calls were refused, and of others nobody knows whether they charged. A person waits until it is
// back and redrives all: those in doubt ask first, so nobody is charged twice.
func TestCallsInDoubtAreRedrivenAfterAnOutage(t *testing.T) {
	t.Parallel()
	w := newTown(t, "shop", "payments")
	bank := &provider{charges: map[string]int{}}
	bank.away.Store(true)
	pay := consumer.Step{Name: "pay", MaxAttempts: 2, RetryBase: time.Millisecond, Settle: time.Millisecond, Timeout: time.Second,
		Action: consumer.Effect("order.created", bank.charge, bank.find, func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], amount int, _ consumer.Emit) error {
			return note(ctx, tx, "payments", in.Key, fmt.Sprintf("paid %d", amount))
		})}
	w.serve(sagamill.Config{Name: "payments", Steps: []consumer.Step{pay}})
	shop, _ := w.serve(sagamill.Config{Name: "shop"})
	w.write(shop, payOrders("order.created", "", 5)...)
	w.awaitQuery(letters, "5")
	w.check("SELECT count(*) FROM payments.effect", "0")

	w.open("dead")
	w.see("5 messages")
	w.screenshot("groups")
	w.press("List the messages")
	w.press("order-001")
	w.see("An attempt may have had an effect outside the database.")
	w.screenshot("doubt")
	w.press("2 earlier failures")
	w.see("The first one and the newest eight are kept.")
	w.screenshot("failures")
	bank.away.Store(false)
	w.open("letters?state=dead&side=inbox&step=pay")
	w.press("Redrive…")
	w.screenshot("preview")
	w.confirm(5)
	w.see("Changed 5 of 5")
	w.awaitQuery("SELECT count(*) FROM payments.effect", "5")
	w.checkOnce("payments", 5)
	w.check(letters, "0")
	bank.mu.Lock()
	defer bank.mu.Unlock()
	for i := range 5 {
		if key := fmt.Sprintf("order-%03d", i+1); bank.charges[key] != 1 {
			t.Errorf("%s was charged %d times", key, bank.charges[key])
		}
	}
	w.check("SELECT string_agg(DISTINCT who, ', ') FROM payments.operator_journal", person)
}

// After a fix, many letters are redriven at a rate. The person types their number, pauses the run, and lets it go on.
func TestManyLettersAreRedrivenAfterAFix(t *testing.T) {
	t.Parallel()
	const many = 130
	w := newTown(t, "shop", "payments")
	var fixed atomic.Bool
	pay := consumer.Step{Name: "pay", Action: consumer.On("order.created", func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], _ consumer.Emit) error {
		if !fixed.Load() {
			return consumer.Terminal(errors.New("payments: the currency is missing"))
		}
		return note(ctx, tx, "payments", in.Key, "paid")
	})}
	w.serve(sagamill.Config{Name: "payments", Steps: []consumer.Step{pay}})
	shop, _ := w.serve(sagamill.Config{Name: "shop"})
	w.write(shop, payOrders("order.created", "", many)...)
	w.awaitQuery(letters, fmt.Sprint(many))

	w.open("dead")
	w.see("the currency is missing")
	w.screenshot("group")
	fixed.Store(true)
	w.press("Redrive…")
	w.see("What it would do now")
	w.screenshot("preview")
	w.confirmAt(many, "5")
	w.press("Pause")
	w.see("paused by ann")
	w.screenshot("paused")
	if left := w.query(letters); left == "0" {
		t.Error("nothing is left of a run that was paused")
	}
	w.press("Continue")
	w.see("running by ann")
	w.press("Pause")
	w.see("paused by ann")
	left, err := strconv.Atoi(w.query(letters))
	if err != nil {
		t.Fatal(err)
	}
	w.open("dead")
	w.press("Redrive…") // the rest, at a higher rate
	w.confirmAt(left, "10000")
	w.see("done by ann")
	w.awaitQuery("SELECT count(*) FROM payments.effect", fmt.Sprint(many))
	w.checkOnce("payments", many)
	w.check(letters, "0")
	w.check("SELECT string_agg(DISTINCT who || ' ' || verb, ', ') FROM payments.operator_journal", "ann dead redrive")
}
