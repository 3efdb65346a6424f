package rabbitmq

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// maxAddresses is how many brokers a Config may name.
	maxAddresses = 32

	// leftMemory is for how long a broker that a link has left is dialled after the
	// others.
	leftMemory = 10 * time.Second
)

// checkAddresses returns the mistake in urls, or "" if they can be dialled. It names an address by its
// position, because the text holds a password.
func checkAddresses(urls []string) string {
	const form = "not an AMQP URL, as amqp://user:password@host:5672/vhost (special characters in user and password must be percent-encoded)"
	if len(urls) > maxAddresses {
		return fmt.Sprintf("%d addresses, the limit is %d", len(urls), maxAddresses)
	}
	var vhost string
	for i, url := range urls {
		at, err := amqp.ParseURI(url)
		switch {
		case len(urls) > 1 && url == "":
			return fmt.Sprintf("address %d of %d is empty", i+1, len(urls))
		case err == nil && strings.ContainsAny(rawVirtualHost(url), ",; \t"): // probably another address, with its password
			return fmt.Sprintf("the virtual host of address %d of %d contains a comma, a semicolon or a space: "+
				"separate addresses by one comma each, and percent-encode such a character of a virtual host", i+1, len(urls))
		case err != nil && len(urls) == 1:
			return form
		case err != nil:
			return fmt.Sprintf("address %d of %d is %s", i+1, len(urls), form)
		case i > 0 && at.Vhost != vhost: // queues of one are not those of the other
			return fmt.Sprintf("address %d of %d has another virtual host than the first", i+1, len(urls))
		}
		vhost = at.Vhost
	}
	return ""
}

// rawVirtualHost returns what follows the host in url, as it is written.
func rawVirtualHost(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	_, path, _ := strings.Cut(rest, "/")
	path, _, _ = strings.Cut(path, "?")
	return path
}

// addresses is what links have found out about brokers. A broker is known by its URL.
type addresses struct {
	mu         sync.Mutex
	left       map[string]time.Time // when a link left the broker
	consumers  map[*link]*conn      // the connection of each subscription that has several addresses
	suspicions []suspicion
	suspected  atomic.Bool // whether there are suspicions
}

// known is what all links of this process share: a Publisher and the Subscribers of a
// service may have Configs of their own, and go to the same brokers.
var known addresses

// orderURLs returns urls in the order in which to dial them: at random, so that connections
// spread over the brokers, and those that were left last, the one left first before the
// others.
func (a *addresses) orderURLs(urls []string) []string {
	urls = slices.Clone(urls)
	rand.Shuffle(len(urls), func(i, j int) { urls[i], urls[j] = urls[j], urls[i] })
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	slices.SortStableFunc(urls, func(x, y string) int { return a.lastLeft(x, now).Compare(a.lastLeft(y, now)) })
	return urls
}

// hasUnleft reports whether there is one of urls that no link has left lately.
func (a *addresses) hasUnleft(urls []string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	return slices.ContainsFunc(urls, func(url string) bool { return a.lastLeft(url, now).IsZero() })
}

// hasOther reports whether there is one of urls besides url that no link has left lately.
func (a *addresses) hasOther(urls []string, url string) bool {
	return a.hasUnleft(slices.DeleteFunc(slices.Clone(urls), func(other string) bool { return other == url }))
}

// lastLeft returns when the broker was left, and zero if that is forgotten. mu is held.
func (a *addresses) lastLeft(url string, now time.Time) time.Time {
	at, known := a.left[url]
	if known && now.Sub(at) > leftMemory {
		delete(a.left, url)
		return time.Time{}
	}
	return at
}

// noteLeft remembers that the broker was left.
func (a *addresses) noteLeft(url string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left == nil {
		a.left = make(map[string]time.Time)
	}
	a.left[url] = time.Now()
}

// addConsumer notes that c is the connection of l, which is a subscription's.
func (a *addresses) addConsumer(l *link, c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.consumers == nil {
		a.consumers = make(map[*link]*conn)
	}
	a.consumers[l] = c
}

// removeConsumer forgets l, which is closed.
func (a *addresses) removeConsumer(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.consumers, l)
}

// brokerAddress returns host and port of a URL.
func brokerAddress(url string) string {
	at, err := amqp.ParseURI(url)
	if err != nil {
		return "not an AMQP URL"
	}
	return net.JoinHostPort(at.Host, strconv.Itoa(at.Port))
}

const (
	// suspectMemory is for how long a broker stays a suspect.
	suspectMemory = time.Minute

	// settledPause is how long after the last handler a suspect is left: by then the ack is
	// written. It is also how often a subscription looks whether its handlers are done.
	settledPause = time.Second
)

// A suspicion is of a broker that may be cut off from the others of its cluster. Such a broker
// keeps its connections and their heartbeats, so a subscription does not notice. This is the rule
// by which subscriptions leave it:
//
//  1. A Publisher leaves a broker that has confirmed nothing on the connection within the
//     confirm timeout. The broker is a suspect for [suspectMemory], because of the
//     destination to which the message went.
//  2. Another broker confirms a message to the same destination. So a message gets through
//     to the queues from there, and did not from the suspect. Another destination says
//     nothing: one queue without a majority is not confirmed by any broker. If the suspect
//     itself confirms the destination, it is no suspect any more.
//  3. Then the subscriptions of the process leave the suspect, if nothing was received on
//     their connection since the wait for the confirm began. That is at least a confirm timeout
//     ago. A delivery, or a connection dialled since, shows that the broker works.
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

// noteSuspicion notes a suspicion.
func (a *addresses) noteSuspicion(url string, to destination, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.suspicions = slices.DeleteFunc(a.suspicions, func(s suspicion) bool { return s.url == url && s.to == to })
	a.suspicions = append(a.suspicions, suspicion{url, to, since, time.Now().Add(suspectMemory)})
	a.suspected.Store(true)
}

// noteConfirmed is called when the broker of url has confirmed a message to a destination. It
// forgets the suspicions that this settles, and returns those of other brokers. A suspect that
// is not of urls may be another cluster's.
func (a *addresses) noteConfirmed(url string, to destination, urls []string) (elsewhere []suspicion) {
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
	if l.hasSeveral() {
		l.addresses.noteSuspicion(c.url, to, since)
	}
	l.leaveBroker(c, departure(fmt.Sprintf("it has not confirmed a message to %s within %s", to, time.Since(since).Round(time.Millisecond))))
}

// confirmedBy is called when the broker of c has confirmed a message to a destination. The
// process's subscriptions leave the suspects that did not. It costs one atomic load unless
// there are any, and never waits.
func (l *link) confirmedBy(c *conn, to destination) {
	for _, s := range l.addresses.noteConfirmed(c.url, to, l.urls) {
		why := departure(fmt.Sprintf("it has not confirmed a message to %s, which %s has confirmed, and sends nothing on this connection", to, brokerAddress(c.url)))
		for _, consumer := range l.addresses.consumersAt(s.url) {
			consumer.leaveUnlessHeard(s.since, why, always)
		}
	}
}

// always is the answer of a suspicion that ends only when something is heard.
func always() bool { return true }

// leaveUnlessHeard begins to leave the broker of c, unless that has begun already. If something was received after since,
// or when still is false, c stays. It never waits.
func (c *conn) leaveUnlessHeard(since time.Time, why departure, still func() bool) {
	if !c.leaving.Swap(true) {
		c.leaveSuspect(since, why, still)
	}
}

// leaveSuspect leaves the broker of c, or looks again later while handlers have messages. It
// gives up when something was received since the suspicion began, or when that is not still true.
func (c *conn) leaveSuspect(since time.Time, why departure, still func() bool) {
	switch {
	case !c.isAlive() || c.heardSince(since) || !still():
		c.leaving.Store(false)
	case c.handlersDone():
		c.link.leaveBroker(c, why)
	default:
		time.AfterFunc(settledPause, func() { c.leaveSuspect(since, why, still) })
	}
}

// noteHeard notes that a delivery, a confirm or a nack was received on c just now.
func (c *conn) noteHeard() { c.heard.Store(int64(time.Since(c.began))) }

// heardSince reports whether one was received since then, or c was dialled since.
func (c *conn) heardSince(then time.Time) bool { return c.heard.Load() > int64(then.Sub(c.began)) }

// noteHandover notes that a handler gets a delivery of c, and handled that it is done with it.
func (c *conn) noteHandover() { c.handling.Add(1) }

func (c *conn) noteHandled() {
	c.settled.Store(int64(time.Since(c.began)))
	c.handling.Add(-1)
}

// handlersDone reports whether handlers are done with what c delivered, for settledPause at
// least.
func (c *conn) handlersDone() bool {
	return c.handling.Load() == 0 && time.Since(c.began)-time.Duration(c.settled.Load()) >= settledPause
}
