package saga_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/saga"
)

var (
	stock   = saga.Step{Name: "stock", Command: "stock.reserve", Compensation: "stock.release"}
	payment = saga.Step{Name: "payment", Command: "payment.take", Compensation: "payment.refund"}
	ticket  = saga.Step{Name: "ticket", Command: "ticket.issue", Pivot: true}
	mail    = saga.Step{Name: "mail", Command: "mail.send"}
)

// Compensations run in reverse, and only for steps that were completed.
func ExampleDefinition_Undo() {
	order, _ := saga.Define("order", 1,
		saga.Step{Name: "stock", Command: "stock.reserve", Compensation: "stock.release"},
		saga.Step{Name: "payment", Command: "payment.take", Compensation: "payment.refund"})
	fmt.Println(order.Undo(2))
	// Output: [payment.refund stock.release]
}

func ExampleDefinition_String() {
	trip, err := saga.Define("trip", 2, stock, payment, ticket, mail)
	fmt.Println(trip, err)
	// Output:
	// saga trip, version 2
	//   1. stock on stock.reserve, undone on stock.release
	//   2. payment on payment.take, undone on payment.refund
	//   3. ticket on ticket.issue, pivot
	//   4. mail on mail.send
	//  <nil>
}

func TestUndo(t *testing.T) {
	t.Parallel()
	d := saga.Must(saga.Define("trip", 1, stock, mail, payment, ticket))
	for completed, want := range map[int]string{
		-1: "[]", 0: "[]", 1: "[stock.release]", 2: "[stock.release]", 3: "[payment.refund stock.release]", 4: "[]", 99: "[]",
	} {
		if got := fmt.Sprint(d.Undo(completed)); got != want {
			t.Errorf("Undo(%d) = %s, want %s", completed, got, want)
		}
	}
}

func TestDefineRefuses(t *testing.T) {
	t.Parallel()
	many := make([]saga.Step, saga.MaxSteps+1)
	for i := range many {
		many[i] = saga.Step{Name: fmt.Sprint("s", i), Command: "c"}
	}
	for want, d := range map[string]func() (*saga.Definition, error){
		"name":       func() (*saga.Definition, error) { return saga.Define("", 1, stock) },
		"version":    func() (*saga.Definition, error) { return saga.Define("x", 0, stock) },
		"0 steps":    func() (*saga.Definition, error) { return saga.Define("x", 1) },
		"101 steps":  func() (*saga.Definition, error) { return saga.Define("x", 1, many...) },
		`step "Bad"`: func() (*saga.Definition, error) { return saga.Define("x", 1, saga.Step{Name: "Bad", Command: "c"}) },
		"twice":      func() (*saga.Definition, error) { return saga.Define("x", 1, stock, stock) },
		"no Command": func() (*saga.Definition, error) { return saga.Define("x", 1, saga.Step{Name: "a"}) },
		"same": func() (*saga.Definition, error) {
			return saga.Define("x", 1, saga.Step{Name: "a", Command: "c", Compensation: "c"})
		},
		"both the": func() (*saga.Definition, error) {
			return saga.Define("x", 1, ticket, saga.Step{Name: "a", Command: "c", Pivot: true})
		},
		"after the": func() (*saga.Definition, error) { return saga.Define("x", 1, ticket, payment) },
		`"p", nothing`: func() (*saga.Definition, error) {
			return saga.Define("x", 1, saga.Step{Name: "p", Command: "c", Compensation: "u", Pivot: true})
		},
	} {
		if _, err := d(); !errors.Is(err, saga.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("Define = %v, want an ErrInvalid that says %s", err, want)
		}
	}
}

func TestHashIsOfThePlan(t *testing.T) {
	t.Parallel()
	same, again := saga.Must(saga.Define("x", 1, stock)), saga.Must(saga.Define("x", 1, stock))
	if same.Hash() != again.Hash() {
		t.Error("the same plan has two hashes")
	}
	for _, other := range []*saga.Definition{
		saga.Must(saga.Define("y", 1, stock)), saga.Must(saga.Define("x", 2, stock)), saga.Must(saga.Define("x", 1, stock, mail)), saga.Must(saga.Define("x", 1, mail)),
	} {
		if other.Hash() == same.Hash() {
			t.Errorf("%s has the hash of %s", other, same)
		}
	}
}

func TestCheckFindsStepsWithoutAHandler(t *testing.T) {
	t.Parallel()
	nop := func(context.Context, pgx.Tx, consumer.Message[struct{}], consumer.Emit) error { return nil }
	d := saga.Must(saga.Define("order", 1, stock, payment))
	steps := []consumer.Step{
		{Name: "stock", Action: consumer.On("stock.reserve", nop), Compensation: consumer.On("stock.release", nop)},
		{Name: "payment", Action: consumer.On("payment.take", nop), Compensation: consumer.On("payment.refund", nop)},
		{Name: "record", Action: consumer.On("any", nop)},
	}
	if err := d.Check(steps...); err != nil {
		t.Errorf("Check of all steps: %v", err)
	}
	steps[0].Compensation = consumer.Input{}
	err := d.Check(steps[0])
	if err == nil || !strings.Contains(err.Error(), `step "stock" listens to`) || !strings.Contains(err.Error(), `step "payment" has no handler`) {
		t.Errorf("Check = %v, want both steps named", err)
	}
}
