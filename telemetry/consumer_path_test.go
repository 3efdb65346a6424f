package telemetry_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/telemetry"
)

// A walker enters handlers, each with what the one before it has emitted.
type walker struct {
	t       *testing.T
	o       *telemetry.ConsumerObserver
	emitted message.Metadata
}

// enter returns the span of an entry. What the span itself would pass on says nothing of the path.
func (w *walker) enter(in consumer.Delivery) trace.SpanContext {
	w.t.Helper()
	in.Metadata = w.emitted
	e := w.o.Enter(w.t.Context(), &in)
	span := trace.SpanContextFromContext(e.Context(w.t.Context()))
	if state := span.TraceState().Get("sagamill"); state != "" {
		w.t.Errorf("requests made in %s would tell %q", in.Step, state)
	}
	parent, state := e.Trace()
	w.emitted = message.Metadata{outbox.HeaderTraceParent: parent, outbox.HeaderTraceState: state}
	if len(state) > 512 {
		w.t.Errorf("a tracestate of %d bytes", len(state))
	}
	w.o.Observe(w.t.Context(), consumer.Event{Delivery: &in, Entry: e, Entered: true, Outcome: consumer.OutcomeDone, Began: time.Now(), Ended: time.Now()})
	return span
}

// A compensation is linked to the span of what it undoes, as long as that is one of the
// last nine actions on its path that can be undone.
func TestACompensationIsLinkedToItsAction(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		traceparent, tracestate string
		linked                  int // of twelve actions
	}{
		"":                      {written, "", 9},
		"others' state is kept": {written, "other=1,more=2", 9},
		"no path":               {written, "sagamill=nothing.of-a..path", 9},
		"not sampled":           {written[:len(written)-1] + "0", "", 0},
		"no trace yet":          {"", "", 9},
	} {
		o, recorder, _ := newConsumerObserver(t, telemetry.Options{})
		w := &walker{t: t, o: o, emitted: message.Metadata{outbox.HeaderTraceParent: tt.traceparent, outbox.HeaderTraceState: tt.tracestate}}
		var actions []trace.SpanContext
		of := func(i int) consumer.Delivery {
			return consumer.Delivery{Topic: "t", Step: fmt.Sprint("step-", i/2), N: fmt.Sprint(i % 2)}
		}
		for i := range 12 {
			action := of(i)
			action.Undoable = true
			actions = append(actions, w.enter(action))
			w.enter(consumer.Delivery{Topic: "t", Step: "told"}) // nobody will undo it
		}
		if tt.tracestate != "" && strings.HasPrefix(tt.tracestate, "other") && !strings.HasSuffix(w.emitted[outbox.HeaderTraceState], tt.tracestate) {
			t.Errorf("%s: emitted with %q", name, w.emitted[outbox.HeaderTraceState])
		}
		for i := len(actions) - 1; i >= 0; i-- {
			undo := of(i)
			undo.Undo = true
			span := w.enter(undo)
			linked := trace.SpanID{}
			for _, s := range recorder.Ended() {
				if s.SpanContext().SpanID() == span.SpanID() && len(s.Links()) > 0 {
					linked = s.Links()[0].SpanContext.SpanID()
				}
			}
			want := trace.SpanID{}
			if i >= len(actions)-tt.linked {
				want = actions[i].SpanID()
			}
			if linked != want {
				t.Errorf("%s: the compensation of action %d is linked to %s, want %s", name, i, linked, want)
			}
		}
	}
}

// A path is one in its trace: what is emitted in another one does not have it.
func TestAPathEndsWithItsTrace(t *testing.T) {
	t.Parallel()
	o, _, _ := newConsumerObserver(t, telemetry.Options{})
	w := &walker{t: t, o: o, emitted: message.Metadata{outbox.HeaderTraceParent: written}}
	w.enter(consumer.Delivery{Topic: "t", Step: "pay", Undoable: true})
	if w.emitted[outbox.HeaderTraceState] == "" {
		t.Fatal("there is no path")
	}
	router := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{9}, SpanID: trace.SpanID{9}, TraceFlags: trace.FlagsSampled})
	in := consumer.Delivery{Topic: "t", Step: "ship", Metadata: w.emitted}
	e := o.Enter(trace.ContextWithSpanContext(t.Context(), router), &in)
	if _, state := e.Trace(); state != "" {
		t.Errorf("in another trace it passes %q on", state)
	}
	o.Observe(t.Context(), consumer.Event{Delivery: &in, Entry: e, Entered: true, Outcome: consumer.OutcomeDone, Began: time.Now(), Ended: time.Now()})
}
