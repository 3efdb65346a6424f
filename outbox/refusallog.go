package outbox

import (
	"sync"
	"time"
)

// The limits of what is logged of refusals. A broker that refuses everything is asked again
// hundreds of times a second.
const (
	refusalPause  = time.Second // from one line about a topic to the next
	refusalTopics = 1000        // that are told apart
)

// A refusalLog says when to log that the broker has refused a message. The zero value is
// ready for use.
type refusalLog struct {
	mu     sync.Mutex
	topics map[string]*silence
}

// A silence is what has not been logged of a topic.
type silence struct {
	since  time.Time // the last line
	unsaid int
}

// next reports whether a refusal of topic is to be logged now, and how many have not been
// since the last that was.
func (r *refusalLog) next(topic string, now time.Time) (unsaid int, log bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.topics[topic]
	if s != nil && now.Sub(s.since) < refusalPause {
		s.unsaid++
		return 0, false
	}
	if s == nil {
		if r.topics == nil || len(r.topics) >= refusalTopics {
			r.topics = make(map[string]*silence)
		}
		s = &silence{}
		r.topics[topic] = s
	}
	unsaid, s.unsaid, s.since = s.unsaid, 0, now
	return unsaid, true
}
