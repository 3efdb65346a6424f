//go:build failpoints

package consumer

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/outbox"
)

// A way is what leads a process to a point, and what that comes to, whatever strikes
// the process there.
type way struct {
	name     string
	arrange  func(*testing.T, *yard) // what has happened before
	queued   []string                // what is in the queue when the process starts: "act k" and "undo k", for a key k
	late     []string                // what comes when all is over, and changes nothing
	unmarked bool
	want     scene
}

var (
	paid     = scene{Steps: []string{"k done"}, Effects: []string{"k paid"}, Receipts: []string{"k paid"}}
	refunded = scene{Steps: []string{"k compensated"}, Effects: []string{"k paid refunded"}, Receipts: []string{"k paid", "k refunded"}}
)

var (
	wayAction       = way{name: "action", queued: []string{"act k"}, late: []string{"act k"}, want: paid}
	wayCompensation = way{name: "compensation", arrange: isPaid, queued: []string{"undo k"}, late: []string{"undo k", "act k"}, want: refunded}
	wayTombstone    = way{name: "tombstone", queued: []string{"undo k"}, late: []string{"act k"}, want: scene{Steps: []string{"k void"}}}
	wayBatch        = way{name: "batch", queued: []string{"act a", "act b", "act c"}, want: scene{
		Steps: []string{"a done", "b done", "c done"}, Effects: []string{"a paid", "b paid", "c paid"}, Receipts: []string{"a paid", "b paid", "c paid"},
	}}
	wayParked       = way{name: "parked action", arrange: isParked("act k"), late: []string{"act k"}, want: paid}
	wayParkedUndo   = way{name: "parked compensation", arrange: isParkedBehind, late: []string{"undo k"}, want: refunded}
	wayCounted      = way{name: "counted action", queued: []string{"act k"}, unmarked: true, late: []string{"act k"}, want: paid}
	wayNamed        = way{name: "message that could not be read", arrange: isMended, late: []string{"act k"}, want: paid}
	wayDeadLetter   = way{name: "dead letter", queued: []string{"act bad"}, late: []string{"act bad"}, want: scene{Steps: []string{"bad dead"}, Parked: []string{"bad dead action terminal"}}}
	wayParkedLetter = way{name: "dead letter of a parked message", arrange: isParked("act bad"), late: []string{"act bad"}, want: wayDeadLetter.want}
	wayUnreadable   = way{name: "unreadable", queued: []string{"odd k"}, want: scene{Parked: []string{"dead unknown key-missing"}}}
)

// ways are what leads to each point. Beside those of a delivery, the commits have
// those of parked messages and of what cannot be read.
var ways = map[string][]way{
	"consumer/after-take":        {wayParked, wayParkedUndo, wayNamed},
	"consumer/after-name":        {wayNamed},
	"consumer/after-count":       {wayCounted},
	"consumer/before-handler":    {wayAction, wayCompensation, wayBatch, wayParked, wayParkedUndo},
	"consumer/after-dead-letter": {wayDeadLetter, wayParkedLetter, wayUnreadable},
	"consumer/before-commit":     {wayAction, wayCompensation, wayTombstone, wayBatch, wayParked, wayParkedUndo, wayDeadLetter, wayUnreadable},
	"consumer/after-commit":      {wayAction, wayCompensation, wayTombstone, wayBatch, wayParked, wayParkedUndo, wayDeadLetter, wayUnreadable},
	"consumer/before-ack":        {wayAction, wayCompensation, wayTombstone, wayBatch, wayDeadLetter, wayUnreadable},
	"consumer/after-ack":         {wayAction, wayCompensation, wayTombstone, wayBatch, wayDeadLetter, wayUnreadable},
	"consumer/after-parked":      {wayParked, wayParkedUndo, wayParkedLetter},
}

// casesAtOnce bounds the processes, each with a few connections.
const casesAtOnce = 4

// For each fault at each point of a consumer: the message has its effect once and leaves one receipt. It is
// acked, no lock is left, and no handler was entered more often than the fault explains. A process that hung
// while another took over changes nothing when it wakes.
func TestFaultsOfAConsumer(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	faulttest.Unreached(t, ways, "consumer")
	yards := faulttest.NewStock(casesAtOnce, func() *yard { return newYard(t) })
	for _, f := range faulttest.Faults("consumer") {
		for _, w := range ways[f.Name] {
			t.Run(f.String()+" "+w.name, func(t *testing.T) {
				t.Parallel()
				needtest.Share(t)
				y := yards.Borrow(t)
				y.clear(t)
				y.strike(t, f, w)
			})
		}
	}
}

// strike lets a process reach the point of f on its way w, and has another process finish its work.
func (y *yard) strike(t *testing.T, f faulttest.Fault, w way) {
	t.Helper()
	if w.arrange != nil {
		w.arrange(t, y)
	}
	y.publish(t, messages(w.queued))
	v := y.start(t, f, w.unmarked)
	v.Struck()
	stop := func() {}
	switch f.Action {
	case "kill":
		faulttest.AtRest(t, y.pool, y.schema)
		y.expire(t)
		_, stop = y.takeOver(t)
	case "error":
		faulttest.AtRest(t, y.pool, y.schema)
		y.expire(t)
	case "delay": // for so long that the broker delivers to another one
		y.cut(w)
		y.expire(t)
		_, stop = y.takeOver(t)
	case "stop": // until the broker, the database and the lease have given it up
		y.cut(w)
		faulttest.EndIdle(t, y.pool, y.schema, "")
		y.expire(t)
		_, stop = y.takeOver(t)
		y.comesTo(t, w.want, v.Said)
		v.Continue()
	default:
		t.Fatalf("no case for the action %s", f.Action)
	}
	y.comesTo(t, w.want, v.Said)
	if f.Action != "kill" {
		v.Retire() // with whatever it has in hand
	}
	stop()
	y.finish(t, w)
}

// cut has the broker deliver again what the process has in hand. One that has nothing
// from the broker may still be about to log in, which it would take for a refusal.
func (y *yard) cut(w way) {
	if len(w.queued) > 0 {
		y.proxy.Cut()
	}
}

// finish lets another consumer have what has come back, and judges. A consumer that stops gives back what it has not
// begun, so the other one settles that first.
func (y *yard) finish(t *testing.T, w way) {
	t.Helper()
	if given := y.waiting(t); given > 0 {
		c, stop := y.takeOver(t)
		faulttest.Await(t, "what was given back is settled", func() bool { return settledBy(c) >= given }, nil)
		stop()
	}
	if n := y.waiting(t); n > 0 {
		t.Errorf("%d messages that nobody acks", n)
	}
	y.comesTo(t, w.want, nothing)
	y.consume(t, false, w.late...)
	y.comesTo(t, w.want, nothing)
	y.withinBudget(t)
	faulttest.AtRest(t, y.pool, y.schema)
}

func nothing() string { return "nothing" }

// messages are those that texts speak of.
func messages(texts []string) (all []*message.Message) {
	for _, text := range texts {
		verb, key, _ := strings.Cut(text, " ")
		switch verb {
		case "act":
			all = append(all, act(key))
		case "undo":
			all = append(all, undo(key))
		default:
			all = append(all, without(act(key), outbox.HeaderKey))
		}
	}
	return all
}

// consume hands messages to a consumer on the spot, whose handlers fail, or not.
func (y *yard) consume(t *testing.T, failing bool, texts ...string) {
	t.Helper()
	step := y.config.step()
	if failing {
		fail := func(context.Context, pgx.Tx, Message[payment], Emit) error { return errors.New("not now") }
		step.Action, step.Compensation = On(yardTopic, fail), On(yardTopic, fail)
		step.Action.Type, step.Compensation.Type = "pay", "unpay"
	}
	c := y.consumer(t, Options{}, step)
	for _, msg := range messages(texts) {
		if err := c.Handle(t.Context(), yardTopic, msg); err != nil {
			t.Fatal(err)
		}
	}
}

func isPaid(t *testing.T, y *yard) { y.consume(t, false, "act k") }

// isParked returns what leaves a message parked, to be run at once.
func isParked(text string) func(*testing.T, *yard) {
	return func(t *testing.T, y *yard) { y.consume(t, true, text) }
}

func isParkedBehind(t *testing.T, y *yard) {
	isPaid(t, y)
	y.consume(t, true, "undo k")
}

// isMended leaves an unreadable message that an operator has edited and redriven.
func isMended(t *testing.T, y *yard) {
	y.consume(t, false, "odd k")
	id := y.letterID(t)
	mended := DeskEdit{Set: map[string]string{outbox.HeaderKey: act("k").Metadata.Get(outbox.HeaderKey)}}
	if err := y.desk(t).Edit(t.Context(), id, mended); err != nil {
		t.Fatal(err)
	}
	if _, err := y.desk(t).Redrive(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}
