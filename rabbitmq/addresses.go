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
	mu         sync.Mutex
	left       map[string]time.Time // when a link left the broker
	consumers  map[*link]*conn      // the connection of each subscription that has several addresses
	suspicions []suspicion
	suspected  atomic.Bool // whether there are suspicions
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

// consume notes that c is the connection of l, which is a subscription's.
func (a *addresses) consume(l *link, c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.consumers == nil {
		a.consumers = make(map[*link]*conn)
	}
	a.consumers[l] = c
}

// release forgets l, which is closed.
func (a *addresses) release(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.consumers, l)
}

// place returns host and port of a URL.
func place(url string) string {
	at, err := amqp.ParseURI(url)
	if err != nil {
		return "not an AMQP URL"
	}
	return net.JoinHostPort(at.Host, strconv.Itoa(at.Port))
}
