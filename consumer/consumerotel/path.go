package consumerotel

import (
	"fmt"
	"hash/fnv"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/stepkey"
)

// pathMember is the member of a message's tracestate that tells which actions have led
// to it, each by a mark and its span, the last one first:
//
//	sagamill=6c62272e-b7ad6b7169203331.811c9dc5-53995c3f42cd8ad8
//
// The spans are of the trace that the message's traceparent names. By it a compensation
// finds the span of what it undoes, which no table knows.
const pathMember = "sagamill"

// maxPath is how long the value of a member may be by W3C Trace Context: nine actions.
const maxPath = 256

// mark tells the steps of a saga apart, and how often each was taken. It does not tell
// what they are called: a tracestate may be shown to anybody.
func mark(in *consumer.Delivery) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(in.Step + "#" + stepkey.JoinN(in.Incarnation, in.N)))
	return fmt.Sprintf("%08x-", h.Sum32())
}

// extended returns path behind the action in, whose span is given. The first ones are
// forgotten where there is no room for all.
func extended(path string, in *consumer.Delivery, span trace.SpanID) string {
	longer := mark(in) + span.String()
	for one := range strings.SplitSeq(path, ".") {
		if one == "" || len(longer)+1+len(one) > maxPath {
			break
		}
		longer += "." + one
	}
	return longer
}

// undone returns the span of the action that in is the compensation of, if the path to
// in has it; or else one that is not valid.
func undone(in *consumer.Delivery) trace.SpanContext {
	from, own := writer(in), mark(in)
	for one := range strings.SplitSeq(from.TraceState().Get(pathMember), ".") {
		span, found := strings.CutPrefix(one, own)
		if !found {
			continue
		}
		if id, err := trace.SpanIDFromHex(span); err == nil {
			return from.WithSpanID(id).WithTraceState(trace.TraceState{})
		}
	}
	return trace.SpanContext{}
}
