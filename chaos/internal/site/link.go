package site

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// A Link is a proxy between a process and one of its backends.
type Link struct {
	name string
	port int

	mu    sync.Mutex // one change at a time
	proxy *toxiproxy.Proxy
}

// proxyServer configures toxiproxy; it does not listen. Toxics log to a global logger, so proxyServer silences
// that.
func proxyServer() *toxiproxy.ApiServer {
	zerolog.SetGlobalLevel(zerolog.Disabled)
	return toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
}

// openLink listens on port and forwards to upstream, which may be down.
func openLink(api *toxiproxy.ApiServer, name string, port int, upstream string) (*Link, error) {
	l := &Link{name: name, port: port, proxy: toxiproxy.NewProxy(api, name, loopbackAddress(port), upstream)}
	if err := l.proxy.Start(); err != nil {
		return nil, fmt.Errorf("site: link %s: %w", name, err)
	}
	return l, nil
}

// OpenConnections returns how many connections are open over the link.
func (l *Link) OpenConnections() int { return established(l.port) }

// SlowDown delays the data in both directions by latency, with a jitter of half of it.
func (l *Link) SlowDown(latency time.Duration) error {
	ms := latency.Milliseconds()
	return l.addToxic("latency", fmt.Sprintf(`{"latency":%d,"jitter":%d}`, ms, ms/2))
}

// NarrowTo limits each direction to so many kilobytes a second.
func (l *Link) NarrowTo(kilobytes int) error {
	return l.addToxic("bandwidth", fmt.Sprintf(`{"rate":%d}`, kilobytes))
}

// SwallowData drops all data and closes no connection, as if the peer had vanished. The dropped data are lost,
// so MendLink closes the connections.
func (l *Link) SwallowData() error { return l.addToxic("timeout", `{"timeout":0}`) }

// ResetConnections resets each connection at its next data.
func (l *Link) ResetConnections() error { return l.addToxic("reset_peer", `{"timeout":0}`) }

// CutConnections closes all connections and refuses new ones.
func (l *Link) CutConnections() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxy.Stop()
}

// addToxic adds a toxic to both directions of the link.
func (l *Link) addToxic(kind, attributes string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, stream := range []string{"upstream", "downstream"} {
		toxic := fmt.Sprintf(`{"name":"%s %s","type":"%s","stream":"%s","attributes":%s}`, kind, stream, kind, stream, attributes)
		if _, err := l.proxy.Toxics.AddToxicJson(bytes.NewReader([]byte(toxic))); err != nil {
			return fmt.Errorf("site: link %s: %s: %w", l.name, kind, err)
		}
	}
	return nil
}

// MendLink removes all faults of the link.
func (l *Link) MendLink() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxy.Toxics.ResetToxics(context.Background())
	l.proxy.Lock()
	enabled := l.proxy.Enabled
	l.proxy.Unlock()
	if enabled {
		return nil
	}
	if err := l.proxy.Start(); err != nil {
		return fmt.Errorf("site: link %s: %w", l.name, err)
	}
	return nil
}
