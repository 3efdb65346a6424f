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

	// condemnedMemory is for how long a broker that did not confirm may be proved
	// guilty: see [link.proved].
	condemnedMemory = time.Minute
)

// checkAddresses says what is wrong with urls, and nothing if they can be dialled. It
// names an address by its position: the text holds a password.
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
		case err == nil && strings.ContainsAny(rawPath(url), ",; \t"): // probably another address, with its password
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

// rawPath returns what follows the host in url, as it is written.
func rawPath(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	_, path, _ := strings.Cut(rest, "/")
	path, _, _ = strings.Cut(path, "?")
	return path
}

// addresses is what links have found out about brokers. A broker is known by its URL.
type addresses struct {
	mu        sync.Mutex
	left      map[string]time.Time    // when a link left the broker
	holders   map[*link]*conn         // the connection of each link that has several addresses
	condemned map[string]condemnation // brokers that did not confirm
	pending   atomic.Bool             // whether condemned has any
}

// known is what all links of this process share: a Publisher and the Subscribers of a
// service may have Configs of their own, and go to the same brokers.
var known addresses

// order returns urls in the order in which to dial them: at random, so that connections
// spread over the brokers, and those that were left last, the one left first before the
// others.
func (a *addresses) order(urls []string) []string {
	urls = slices.Clone(urls)
	rand.Shuffle(len(urls), func(i, j int) { urls[i], urls[j] = urls[j], urls[i] })
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	slices.SortStableFunc(urls, func(x, y string) int { return a.leftAt(x, now).Compare(a.leftAt(y, now)) })
	return urls
}

// anyUnleft reports whether there is one of urls that no link has left lately.
func (a *addresses) anyUnleft(urls []string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	return slices.ContainsFunc(urls, func(url string) bool { return a.leftAt(url, now).IsZero() })
}

// leftAt returns when the broker was left, and zero if that is forgotten. mu is held.
func (a *addresses) leftAt(url string, now time.Time) time.Time {
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

// hold notes that c is the connection of l.
func (a *addresses) hold(l *link, c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.holders == nil {
		a.holders = make(map[*link]*conn)
	}
	a.holders[l] = c
}

// release forgets l, which is closed.
func (a *addresses) release(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.holders, l)
}

// A condemnation holds the connections to a broker that did not confirm to another one,
// and how much had been heard on each of them by then.
type condemnation struct {
	until time.Time
	heard map[*link]hearing
}

type hearing struct {
	conn  *conn
	count uint64
}

// condemn notes that the broker of c, the connection of l, does not confirm.
func (a *addresses) condemn(l *link, c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	heard := make(map[*link]hearing)
	for other, held := range a.holders {
		if other != l && held.url == c.url && held.alive() {
			heard[other] = hearing{held, held.heard.Load()}
		}
	}
	if a.condemned == nil {
		a.condemned = make(map[string]condemnation)
	}
	a.condemned[c.url] = condemnation{time.Now().Add(condemnedMemory), heard}
	a.pending.Store(true)
}

// convict is called when the broker of c has confirmed, a connection of a link to urls. It
// forgets the condemnations of the others of urls, and returns the connections to them on
// which nothing was heard since, each with its link. Brokers that are not of urls may be
// another cluster's.
func (a *addresses) convict(c *conn, urls []string) map[*link]*conn {
	if !a.pending.Load() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	silent := make(map[*link]*conn)
	for url, of := range a.condemned {
		expired := time.Now().After(of.until)
		if !expired && (url == c.url || !slices.Contains(urls, url)) {
			continue
		}
		delete(a.condemned, url)
		for l, h := range of.heard {
			if !expired && a.holders[l] == h.conn && h.conn.alive() && h.conn.heard.Load() == h.count {
				silent[l] = h.conn
			}
		}
	}
	a.pending.Store(len(a.condemned) > 0)
	return silent
}

// place returns host and port of a URL.
func place(url string) string {
	at, err := amqp.ParseURI(url)
	if err != nil {
		return "not an AMQP URL"
	}
	return net.JoinHostPort(at.Host, strconv.Itoa(at.Port))
}
