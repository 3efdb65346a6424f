package outbox

import (
	"sync"
	"time"
)

// The limits of what is logged of refusals. A broker that refuses everything is asked again
// hundreds of times a second.
const (
	refusalPause  = time.Second // from one line about a topic to the next
	refusalTopics = 1000        // that are told apart; all others are one
)

// A refusalLog says when to log that the broker has refused a message. The zero value is
// ready for use.
type refusalLog struct {
	mu     sync.Mutex
	topics map[string]*silence
	others silence
}

// A silence is what has not been logged of a topic.
type silence struct {
	spoken bool
	since  time.Time // the last line
	unsaid int
}

// of returns that of a topic, or of all that there is no room for.
func (r *refusalLog) of(topic string) *silence {
	s := r.topics[topic]
	if s != nil {
		return s
	}
	if len(r.topics) >= refusalTopics {
		return &r.others
	}
	if r.topics == nil {
		r.topics = make(map[string]*silence)
	}
	s = &silence{}
	r.topics[topic] = s
	return s
}

// next reports whether a refusal of topic is to be logged now, and how many have not been
// since the last that was.
func (r *refusalLog) next(topic string, now time.Time) (unsaid int, log bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of(topic)
	if s.spoken && now.Sub(s.since) < refusalPause {
		s.unsaid++
		return 0, false
	}
	unsaid, s.unsaid, s.since, s.spoken = s.unsaid, 0, now, true
	return unsaid, true
}
