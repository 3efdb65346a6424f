package saga_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/telemetry"
)

// What an instance leads to is in the trace in which it was begun: below what asked for
// it where that is a reply, and below its begin where it is a timer or a person. A
// compensation is linked to its action, if a reply has asked for it.
func TestAnInstanceIsOneTrace(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		item   string
		silent bool // no participant books hotels, and an operator decides about that step
		want   string
	}{
		"completed": {item: "x", want: `begin
  process flight done
    process saga-trip done
      process hotel done
        process saga-trip done
`},
		"a step is rejected": {item: "no hotel", want: `begin
  process flight done
    process saga-trip done
      process hotel done
        process saga-trip done
          compensate flight done -> process flight
            process saga-trip done
`},
		"a person decides": {item: "x", silent: true, want: `begin
  compensate flight done
    process saga-trip done
  process flight done
    process saga-trip done
`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			recorder := p.traced(tt.item, tt.silent)
			p.await("all spans have ended", func() bool { return len(recorder.Ended()) >= strings.Count(tt.want, "\n") })
			if diff := cmp.Diff(tt.want, drawTrace(recorder.Ended(), trace.SpanID{}, "")); diff != "" {
				t.Errorf("the trace (-want +got):\n%s", diff)
			}
		})
	}
}

// traced begins an instance of a trip in a trace, and the recorder has all its spans. If silent, no
// participant books hotels, and an operator rejects that step.
func (p *place) traced(item string, silent bool) *tracetest.SpanRecorder {
	p.t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	observer, err := telemetry.NewConsumerObserver(&telemetry.Options{TracerProvider: provider})
	if err != nil {
		p.t.Fatal(err)
	}
	undone := func(name string) saga.Step[trip] {
		s := book(name)
		s.Undo = saga.Remote[trip, request, any](name+".cancel", (*trip).request, nil)
		return s
	}
	steps := []consumer.Step{saga.Participant(p.booking("flight"))}
	if !silent {
		steps = append(steps, saga.Participant(p.booking("hotel")))
	}
	d := saga.Must(saga.Define("trip", 1, undone("flight"), undone("hotel")))
	p.orchestrate(&saga.Options{Consumer: consumer.Options{Observer: observer}}, d)
	sub := p.broker.Subscriber("participant")
	c, err := consumer.New(p.db, sub, steps, &consumer.Options{Schema: p.schema, Logger: quiet, Wake: p.relay.Wake, Observer: observer})
	if err != nil {
		p.t.Fatal(err)
	}
	p.serve(sub, c.Topics(), c.Run)

	ctx, root := provider.Tracer("").Start(p.t.Context(), "begin")
	s, err := saga.NewStarter(d, &saga.StarterOptions{Schema: p.schema, Tracer: telemetry.NewOutboxTracer(&telemetry.Options{TracerProvider: provider})})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
		_, err := s.Start(ctx, tx, saga.ID{Scope: "tenant", Key: "k"}, trip{Item: item})
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	root.End()
	p.relay.Wake()
	if silent {
		p.rejectHotel()
	}
	return recorder
}

// rejectHotel has a person say that there will be no hotel, once there is a flight.
func (p *place) rejectHotel() {
	p.t.Helper()
	instances, err := operator.NewInstances(p.db, &operator.Options{Schema: p.schema})
	if err != nil {
		p.t.Fatal(err)
	}
	p.untilSQL("k", `state LIKE '%flight for k%'`)
	if _, err := instances.Decide(p.t.Context(), saga.Address{Scope: "tenant", Key: "k"}, operator.Decision{Verb: operator.VerbReject, Step: "hotel", By: "me", Why: "it is closed"}); err != nil {
		p.t.Fatal(err)
	}
}

// drawTrace draws the spans below parent with what they are linked to, siblings in the
// order of their names.
func drawTrace(all []sdktrace.ReadOnlySpan, parent trace.SpanID, indent string) string {
	name := func(s sdktrace.ReadOnlySpan) string {
		text := s.Name()
		for _, a := range s.Attributes() {
			if a.Key == attribute.Key("sagamill.outcome") {
				text += " " + a.Value.AsString()
			}
		}
		for _, to := range s.Links() {
			at := slices.IndexFunc(all, func(s sdktrace.ReadOnlySpan) bool { return s.SpanContext().SpanID() == to.SpanContext.SpanID() })
			if at < 0 || s.SpanContext().TraceID() != to.SpanContext.TraceID() {
				return text + " -> nothing that is known"
			}
			text += " -> " + all[at].Name()
		}
		return text
	}
	var below []string
	for _, s := range all {
		if s.Parent().SpanID() == parent {
			below = append(below, fmt.Sprintf("%s%s\n%s", indent, name(s), drawTrace(all, s.SpanContext().SpanID(), indent+"  ")))
		}
	}
	slices.Sort(below)
	return strings.Join(below, "")
}

// A tracer of one long trace state.
type verbose struct{}

func (verbose) Trace(context.Context) (string, string) {
	return "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "k=" + strings.Repeat("v", 600)
}

// What an instance keeps of a stranger's trace is read with each of its locks: it is no
// more than its messages pass on.
func TestAnInstanceKeepsWhatItPassesOnOfATrace(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s, err := saga.NewStarter(saga.Must(saga.Define("trip", 1, book("flight"))), &saga.StarterOptions{Schema: p.schema, Tracer: verbose{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := pgx.BeginFunc(t.Context(), p.db, func(tx pgx.Tx) error {
		_, err := s.Start(t.Context(), tx, saga.ID{Scope: "tenant", Key: "k"}, trip{Item: "x"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var kept string
	if err := p.db.QueryRow(t.Context(), "SELECT concat(length(trace_parent), ' ', length(trace_state)) FROM "+p.schema+".saga").Scan(&kept); err != nil || kept != "55 0" {
		t.Errorf("it keeps %s bytes, %v; want 55 0", kept, err)
	}
}
