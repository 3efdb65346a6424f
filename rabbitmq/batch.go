package rabbitmq

import (
	"fmt"

	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/outbox"
)

// A batch is what one call publishes, and what became of it so far.
type batch struct {
	letters  []letter
	results  []error
	resolved []bool
	nacked   []bool // once; nil: none was
	first    int    // all before it are resolved
	routes   []*route
}

// A route is where a topic of the batch goes.
type route struct {
	destination
	topic   string
	refused error // the broker's answer of a moment ago
	suspect bool  // was refused before that, and not tried since
}

// pack makes a batch. Messages that cannot be sent are refused in it, and so
// are those to where the broker has only just refused others.
func (p *Publisher) pack(publications []outbox.Publication) *batch {
	n := len(publications)
	b := &batch{letters: make([]letter, n), results: make([]error, n), resolved: make([]bool, n)}
	byTopic := make(map[string]*route, 1)
	var last *route
	for i := range publications {
		topic := publications[i].Topic
		if last == nil || last.topic != topic {
			if last = byTopic[topic]; last == nil {
				last = p.route(topic)
				byTopic[topic] = last
				b.routes = append(b.routes, last)
			}
		}
		b.letters[i].route = last
		if err := p.write(&b.letters[i], publications[i].Message); err != nil {
			b.resolve(i, err)
		}
	}
	return b
}

func (p *Publisher) route(topic string) *route {
	r := &route{topic: topic}
	err := guard.Call(func() error {
		r.exchange = p.cfg.Exchange.GenerateName(topic)
		if p.cfg.Publish.GenerateRoutingKey != nil {
			r.key = p.cfg.Publish.GenerateRoutingKey(topic)
		}
		return nil
	})
	if err != nil {
		r.refused = fmt.Errorf("%w: names of topic %s: %w", ErrRejected, topic, err)
		return r
	}
	r.refused, r.suspect = p.destinations.standing(r.destination)
	return r
}

// next returns the index of the first unresolved message, or -1.
func (b *batch) next() int {
	for b.first < len(b.resolved) && b.resolved[b.first] {
		b.first++
	}
	return b.after(b.first - 1)
}

// after returns the index of the first unresolved message after i, or -1.
func (b *batch) after(i int) int {
	for i++; i < len(b.resolved); i++ {
		if !b.resolved[i] {
			return i
		}
	}
	return -1
}

func (b *batch) resolve(i int, err error) { b.results[i], b.resolved[i] = err, true }

// nack notes that message i was nacked. The first time it stays open, to be sent once more
// on another channel: the broker may have nacked the channel and not the message.
func (b *batch) nack(i int) {
	if b.nacked == nil {
		b.nacked = make([]bool, len(b.letters))
	}
	if b.nacked[i] {
		b.resolve(i, fmt.Errorf("%w: exchange %s", ErrNacked, b.letters[i].route.exchange))
	}
	b.nacked[i] = true
}

// refuse resolves every open message to d.
func (b *batch) refuse(d destination, err error) {
	for i := b.next(); i >= 0; i = b.after(i) {
		if b.letters[i].route.destination == d {
			b.resolve(i, err)
		}
	}
}

// fail resolves what is left with err and returns the results.
func (b *batch) fail(err error) []error {
	for i := b.next(); i >= 0; i = b.after(i) {
		b.resolve(i, err)
	}
	return b.results
}
