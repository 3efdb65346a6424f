package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
)

// publishTopic is [Relay.publishWave] for messages of one topic. It gives up early if the
// topic stalls.
func (r *Relay) publishTopic(ctx context.Context, topic string, wave []*item) []error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	call := r.topics.begin(topic)
	stop := r.topics.watch(call, cancel)
	results := r.publishWave(ctx, wave)
	stop()
	if r.topics.end(call, results, errors.Is(context.Cause(ctx), errStalled)) {
		r.opts.Logger.WarnContext(ctx, "outbox: the topic stalls: its messages are kept aside until the broker takes them",
			"schema", r.opts.Schema, "topic", topic, "error", results[0])
	}
	return results
}

// publishWave hands wave, in which no ordering key occurs twice, to the broker
// and returns a result for each message.
func (r *Relay) publishWave(ctx context.Context, wave []*item) []error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.PublishTimeout)
	defer cancel()
	results := make([]error, len(wave))
	publications := make([]Publication, 0, len(wave))
	sent := make([]int, 0, len(wave))
	for i, m := range wave {
		msg, err := m.message()
		if err != nil { // nothing but a row that somebody wrote by hand
			results[i] = fmt.Errorf("%w: %w", ErrRefused, err)
			continue
		}
		publications = append(publications, Publication{Topic: m.Topic, Message: msg})
		sent = append(sent, i)
	}
	if len(sent) == 0 {
		return results
	}
	traced, at := r.traced(publications, wave, sent)
	start := time.Now()
	lost := failpoint.Hit("outbox/before-publish")
	var answers []error
	if lost == nil {
		answers = r.publishSafely(ctx, publications)
		lost = failpoint.Hit("outbox/after-confirm")
	}
	elapsed := time.Since(start)
	for j, i := range sent {
		if lost != nil {
			results[i] = lost
			continue
		}
		if j >= len(answers) {
			results[i] = fmt.Errorf("outbox: publisher gave %d results for %d messages", len(answers), len(sent))
			continue
		}
		results[i] = answers[j]
	}
	r.counters.called(elapsed, results)
	r.tell(ctx, Call{Began: start, Took: elapsed, Messages: len(publications), Traced: traced}, at, results)
	return results
}

// publishSafely survives a publisher that panics over a message, or ends its goroutine: the
// others go out one by one, and the culprit is refused.
func (r *Relay) publishSafely(ctx context.Context, publications []Publication) (answers []error) {
	err := guard.Apart(func() error {
		answers = r.pub.PublishBatch(ctx, publications)
		return nil
	})
	switch {
	case err == nil:
		return answers
	case len(publications) == 1:
		guard.Log(ctx, r.opts.Logger, "outbox: the publisher", err)
		return []error{fmt.Errorf("%w: the publisher %w", ErrRefused, err)}
	}
	answers = nil
	for _, p := range publications {
		answers = append(answers, r.publishSafely(ctx, []Publication{p})...)
	}
	return answers
}
