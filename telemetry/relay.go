package telemetry

import (
	"context"
	"errors"
	"strconv"

	"go.opentelemetry.io/otel/metric"

	"github.com/sagamill/sagamill/outbox"
)

// RegisterRelay measures relay, and its outbox, at each collection until the registration is
// unregistered. It starts nothing, and relay need not run: the outbox is measured in any case.
// A nil opts means the defaults. An error is about an argument, or comes from the meter
// provider.
//
// If the database does not answer within [Options].Timeout, the outbox is missing from that
// collection and OpenTelemetry's error handler receives the error. All other metrics are
// collected.
func RegisterRelay(relay *outbox.Relay, opts *Options) (metric.Registration, error) {
	if relay == nil {
		return nil, errors.New("telemetry: RegisterRelay needs a relay")
	}
	return register(scopeOutbox, &relaySource{relay: relay}, opts)
}

// A relaySource reads one relay and its outbox.
type relaySource struct {
	relay *outbox.Relay

	messages, epoch, leaf, active, stalled                   metric.Int64ObservableGauge
	oldest, writer                                           metric.Float64ObservableGauge
	published, refusals, dead, queued, unavailable, confirms metric.Int64ObservableCounter
	deferred                                                 metric.Int64ObservableCounter
	confirmSeconds                                           metric.Float64ObservableCounter
}

func (s *relaySource) makeInstruments(i *instruments) {
	i.observeGauge(&s.messages, "sagamill.outbox.messages", "{message}", "Messages that are not published, by state.")
	i.observeSecondsGauge(&s.oldest, "sagamill.outbox.oldest_seconds", "Age of the oldest message that is to be published next.")
	i.observeGauge(&s.epoch, "sagamill.outbox.epoch", "{tenure}", "How often the active relay has changed.")
	i.observeGauge(&s.leaf, "sagamill.outbox.leaf_bytes", "By", "Size of each table of the log.")
	i.observeSecondsGauge(&s.writer, "sagamill.outbox.oldest_writer_seconds", "How long the oldest transaction is open that has written.")
	i.observeGauge(&s.active, "sagamill.outbox.active", "{relay}", "Whether this relay is the active one.")
	i.observeCounter(&s.published, "sagamill.outbox.published", "{message}", "Messages that the broker has confirmed and not returned.")
	i.observeCounter(&s.refusals, "sagamill.outbox.refusals", "{refusal}", "Refusals of the broker.")
	i.observeCounter(&s.dead, "sagamill.outbox.dead_letters", "{message}", "Messages that became dead letters.")
	i.observeCounter(&s.queued, "sagamill.outbox.queued", "{message}", "Messages that were held behind a refused or deferred one.")
	i.observeGauge(&s.stalled, "sagamill.outbox.stalled", "{topic}", "Topics that the broker takes no messages of, while it takes others.")
	i.observeCounter(&s.deferred, "sagamill.outbox.deferred", "{message}", "Times that a message was kept aside because its topic took none.")
	i.observeCounter(&s.unavailable, "sagamill.outbox.unavailable", "{call}", "Calls of the publisher without an answer.")
	i.observeCounter(&s.confirms, "sagamill.outbox.confirms", "{call}", "Calls of the publisher that took at most le seconds.")
	i.observeSecondsCounter(&s.confirmSeconds, "sagamill.outbox.confirm_seconds", "Time in calls of the publisher.")
}

func (s *relaySource) reportProcess(r *report) {
	c := s.relay.Counters()
	r.setFlag(s.active, c.Active)
	r.setCount(s.published, int64(c.Published))
	r.setCount(s.refusals, int64(c.Refused))
	r.setCount(s.dead, int64(c.Dead))
	r.setCount(s.queued, int64(c.Queued))
	r.setCount(s.stalled, int64(c.Stalled))
	r.setCount(s.deferred, int64(c.Deferred))
	r.setCount(s.unavailable, int64(c.Unavailable))
	for _, b := range c.Confirm.Buckets {
		r.setCount(s.confirms, int64(b.Count), labelBound.String(strconv.FormatFloat(b.AtMost.Seconds(), 'f', -1, 64)))
	}
	r.setCount(s.confirms, int64(c.Confirm.Count), labelBound.String("+Inf"))
	r.setSeconds(s.confirmSeconds, c.Confirm.Sum)
}

func (s *relaySource) reportDatabase(ctx context.Context, r *report) error {
	stats, err := s.relay.Stats(ctx)
	if err != nil {
		return err
	}
	for state, n := range map[string]int{
		"stored": stats.Stored, "delayed": stats.Delayed, "waiting": stats.Waiting, "refused": stats.Refused, "dead": stats.Dead,
	} {
		r.setCount(s.messages, int64(n), labelState.String(state))
	}
	for leaf, size := range stats.Leaves {
		r.setCount(s.leaf, size, labelLeaf.String(leaf))
	}
	r.setSeconds(s.oldest, stats.Oldest)
	r.setCount(s.epoch, stats.Epoch)
	r.setSeconds(s.writer, stats.OldestWriter)
	return nil
}
