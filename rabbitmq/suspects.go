package rabbitmq

import (
	"fmt"
	"slices"
	"time"
)

const (
	// suspectMemory is for how long a broker stays a suspect.
	suspectMemory = time.Minute

	// settledPause is how long after the last handler a suspect is left: by then the ack is
	// written. It is also how often a subscription looks whether its handlers are done.
	settledPause = time.Second
)

// A suspicion is of a broker that may be cut off from the others of its cluster. Such a broker
// keeps its connections and their heartbeats, so a subscription does not notice by itself.
// This is the rule by which subscriptions leave it:
//
//  1. A Publisher leaves a broker that has confirmed nothing on the connection within the
//     confirm timeout. The broker is a suspect for [suspectMemory], because of the
//     destination to which the message went.
//  2. Another broker confirms a message to the same destination. So a message gets through
//     to the queues from there, and did not from the suspect. Another destination says
//     nothing: one queue without a majority is not confirmed by any broker. If the suspect
//     itself confirms the destination, it is no suspect any more.
//  3. Then the subscriptions of the process leave the suspect, if nothing was received on
//     their connection since the wait for the confirm began, which is a confirm timeout ago at
//     least. A delivery, or a connection dialled since, shows that the broker works.
//  4. A subscription of which a handler has a message stays until its handlers are done, and
//     settledPause longer: the broker would deliver the message again.
//
// The suspicion is wrong if the queue gets its majority back between 1 and 2. It costs a
// subscription without work a new connection then, and runs no handler twice. A broker that
// hangs altogether sends no heartbeat either, which ends a connection whatever handlers do.
type suspicion struct {
	url   string      // of the broker
	to    destination // which was not confirmed
	since time.Time   // when the wait for the confirm began
	until time.Time   // after which it is forgotten
}

// suspect notes a suspicion.
func (a *addresses) suspect(url string, to destination, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.suspicions = slices.DeleteFunc(a.suspicions, func(s suspicion) bool { return s.url == url && s.to == to })
	a.suspicions = append(a.suspicions, suspicion{url, to, since, time.Now().Add(suspectMemory)})
	a.suspected.Store(true)
}

// confirmed is called when the broker of url has confirmed a message to a destination. It
// forgets the suspicions that this settles, and returns those of other brokers. A suspect that
// is not of urls may be another cluster's.
func (a *addresses) confirmed(url string, to destination, urls []string) (elsewhere []suspicion) {
	if !a.suspected.Load() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.suspicions = slices.DeleteFunc(a.suspicions, func(s suspicion) bool {
		if expired := now.After(s.until); expired || s.to != to || !slices.Contains(urls, s.url) {
			return expired
		}
		if s.url != url {
			elsewhere = append(elsewhere, s)
		}
		return true
	})
	a.suspected.Store(len(a.suspicions) > 0)
	return elsewhere
}

// consumersAt returns the connections of subscriptions to the broker of url.
func (a *addresses) consumersAt(url string) (conns []*conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.consumers {
		if c.url == url {
			conns = append(conns, c)
		}
	}
	return conns
}

// leaveUnconfirmed leaves the broker of c, which has not confirmed a message to a destination
// since then. If there are other brokers, it is a suspect from now on.
func (l *link) leaveUnconfirmed(c *conn, to destination, since time.Time) {
	if l.several() {
		l.addresses.suspect(c.url, to, since)
	}
	l.leave(c, departure(fmt.Sprintf("it has not confirmed a message to %s within %s", to, time.Since(since).Round(time.Millisecond))))
}

// confirmedBy is called when the broker of c has confirmed a message to a destination. The
// process's subscriptions leave the suspects that did not. It costs one atomic load unless
// there are any, and never waits.
func (l *link) confirmedBy(c *conn, to destination) {
	for _, s := range l.addresses.confirmed(c.url, to, l.urls) {
		why := departure(fmt.Sprintf("it has not confirmed a message to %s, which %s has confirmed, and sends nothing on this connection", to, place(c.url)))
		for _, consumer := range l.addresses.consumersAt(s.url) {
			if !consumer.leaving.Swap(true) {
				consumer.leaveSuspect(s.since, why)
			}
		}
	}
}

// leaveSuspect leaves the broker of c, or looks again later while handlers have messages. It
// gives up when something was received since the suspicion began.
func (c *conn) leaveSuspect(since time.Time, why departure) {
	switch {
	case !c.alive() || c.heardSince(since):
		c.leaving.Store(false)
	case c.handlersDone():
		c.link.leave(c, why)
	default:
		time.AfterFunc(settledPause, func() { c.leaveSuspect(since, why) })
	}
}

// hear notes that a delivery, a confirm or a nack was received on c just now.
func (c *conn) hear() { c.heard.Store(int64(time.Since(c.began))) }

// heardSince reports whether one was received since then, or c was dialled since.
func (c *conn) heardSince(then time.Time) bool { return c.heard.Load() > int64(then.Sub(c.began)) }

// handOver notes that a handler gets a delivery of c, and handled that it is done with it.
func (c *conn) handOver() { c.handling.Add(1) }

func (c *conn) handled() {
	c.settled.Store(int64(time.Since(c.began)))
	c.handling.Add(-1)
}

// handlersDone reports whether handlers are done with what c delivered, for settledPause at
// least.
func (c *conn) handlersDone() bool {
	return c.handling.Load() == 0 && time.Since(c.began)-time.Duration(c.settled.Load()) >= settledPause
}
