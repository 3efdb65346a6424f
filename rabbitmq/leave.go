package rabbitmq

import (
	"sync"
	"time"
)

const (
	// blockedPatience is how long a broker may block a connection before a link with
	// several addresses leaves it.
	blockedPatience = time.Second

	// After an alarm has made a link leave a broker, another alarm may do so after
	// firstAlarmPause, and then after twice as long each time, up to maxAlarmPause: an alarm
	// of one broker blocks the publishers of its whole cluster. Two maxAlarmPause without
	// one count as the end.
	firstAlarmPause = 2 * time.Second
	maxAlarmPause   = 30 * time.Second
)

// A departure is why a link leaves a broker.
type departure string

const (
	connectionLost departure = "the connection is lost"
	blockedByAlarm departure = "an alarm blocks it"
)

// leave drops c. If there are other addresses, every link of this process dials them before
// that of c for [leftMemory]. Leaving one connection again only drops it. It never waits.
func (l *link) leave(c *conn, why departure) {
	l.note(c, why)
	c.drop()
}

// note remembers that the broker of c was left, once for each connection.
func (l *link) note(c *conn, why departure) {
	if !l.several() || c.left.Swap(true) {
		return
	}
	l.addresses.noteLeft(c.url)
	if why != connectionLost {
		l.log.WarnContext(l.life, "rabbitmq: leaving a broker for another one", "name", l.opts.Name, "broker", place(c.url), "reason", string(why))
	}
}

// bearAlarm returns what ends the patience with an alarm that is active or over. A further
// alarm does not prolong it.
func (l *link) bearAlarm(active bool, patience <-chan time.Time) <-chan time.Time {
	switch {
	case !active || !l.several():
		return nil
	case patience == nil:
		return time.After(blockedPatience)
	}
	return patience
}

// leaveBlocked leaves the broker of c, which has blocked it for blockedPatience, or returns
// when to ask again.
func (l *link) leaveBlocked(c *conn) (again <-chan time.Time) {
	if wait := l.alarms.due(time.Now()); wait > 0 {
		return time.After(wait)
	}
	l.leave(c, blockedByAlarm)
	return nil
}

// alarms limits how often they make a link leave a broker.
type alarms struct {
	mu     sync.Mutex
	leaves int // in a row
	last   time.Time
}

// due returns 0 and counts one if a link may leave because of an alarm, or how long it has
// to wait.
func (a *alarms) due(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	since := now.Sub(a.last)
	if since > 2*maxAlarmPause {
		a.leaves = 0
	}
	if a.leaves > 0 {
		pause := min(firstAlarmPause<<min(a.leaves-1, 16), maxAlarmPause)
		if since < pause {
			return pause - since
		}
	}
	a.leaves, a.last = a.leaves+1, now
	return 0
}
