package site

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// The limits of the gateway's proxy.
const (
	maxGatewayBody   = 1 << 20
	gatewayPatience  = 30 * time.Second // for an answer of a gateway
	gatewayIdle      = time.Minute
	gatewayCloseWait = 5 * time.Second
)

// A GatewayFault is a fault of the gateway's proxy. The zero value lets every request pass.
type GatewayFault struct {
	Every int           // it strikes one request of so many; 0: none
	Lose  bool          // lose the answer, instead of refusing the request
	Delay time.Duration // delay the request, without any other fault
}

// A Gateway spreads the payment services' requests over the two gateways and applies a GatewayFault to them.
type Gateway struct {
	upstream []string // host:port
	server   *http.Server
	client   *http.Transport
	serving  sync.WaitGroup

	fault                   atomic.Pointer[GatewayFault]
	turn, requests          atomic.Int64
	refused, lost, heldback atomic.Int64
}

// openGateway listens on port.
func openGateway(port int, upstream []string) (*Gateway, error) {
	listener, err := net.Listen("tcp", loopbackAddress(port))
	if err != nil {
		return nil, err
	}
	g := &Gateway{upstream: upstream, client: &http.Transport{MaxIdleConnsPerHost: 32, IdleConnTimeout: gatewayIdle}}
	g.fault.Store(&GatewayFault{})
	g.server = &http.Server{Handler: g, ReadHeaderTimeout: gatewayPatience}
	g.serving.Go(func() { _ = g.server.Serve(listener) })
	return g, nil
}

// StrikeWith applies f to all requests from now on.
func (g *Gateway) StrikeWith(f GatewayFault) { g.fault.Store(&f) }

// RefusedCalls returns how many requests the proxy has answered for a gateway.
func (g *Gateway) RefusedCalls() int { return int(g.refused.Load()) }

// LostAnswers returns how many answers of a gateway the proxy has lost.
func (g *Gateway) LostAnswers() int { return int(g.lost.Load()) }

// DelayedCalls returns how many requests the proxy has delayed.
func (g *Gateway) DelayedCalls() int { return int(g.heldback.Load()) }

// ServeHTTP passes a request on to a gateway and returns its answer. A fault with Delay delays a struck request
// first. One with Lose replaces the answer by a closed connection or 504, in turn. Any other fault refuses a
// struck request with 500 or 503, in turn.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxGatewayBody))
	if err != nil {
		return
	}
	f := g.fault.Load()
	struck := f.Every > 0 && g.requests.Add(1)%int64(f.Every) == 0
	odd := g.turn.Add(1)%2 == 1
	switch {
	case struck && f.Delay > 0:
		g.heldback.Add(1)
		select {
		case <-time.After(f.Delay):
		case <-r.Context().Done():
			return
		}
	case struck && !f.Lose:
		g.refused.Add(1)
		status := http.StatusServiceUnavailable
		if odd {
			status = http.StatusInternalServerError
		}
		http.Error(w, "injected", status)
		return
	}
	answer, err := g.forwardCall(r, body)
	switch {
	case err != nil:
		http.Error(w, "no gateway answers", http.StatusBadGateway)
	case struck && f.Lose && odd:
		g.lost.Add(1)
		_ = answer.Body.Close()
		panic(http.ErrAbortHandler) // closes the connection
	case struck && f.Lose:
		g.lost.Add(1)
		_ = answer.Body.Close()
		http.Error(w, "injected", http.StatusGatewayTimeout)
	default:
		passAnswer(w, answer)
	}
}

func passAnswer(w http.ResponseWriter, answer *http.Response) {
	defer answer.Body.Close()
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, io.LimitReader(answer.Body, maxGatewayBody))
}

// forwardCall sends the request to one gateway, or to the other if that does not accept a connection.
func (g *Gateway) forwardCall(r *http.Request, body []byte) (answer *http.Response, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), gatewayPatience)
	defer cancel()
	first := int(g.turn.Load())
	for i := range g.upstream {
		out := r.Clone(ctx)
		out.URL.Scheme, out.URL.Host = "http", g.upstream[(first+i)%len(g.upstream)]
		out.Body, out.ContentLength, out.RequestURI = io.NopCloser(bytes.NewReader(body)), int64(len(body)), ""
		answer, err = g.client.RoundTrip(out)
		if err == nil {
			err = readWhole(answer)
		}
		var dial *net.OpError
		if !errors.As(err, &dial) || dial.Op != "dial" {
			return answer, err
		}
	}
	return nil, err
}

// readWhole replaces the body by a copy, because the request's context ends before the body is passed on.
func readWhole(answer *http.Response) error {
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxGatewayBody))
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return err
}

func (g *Gateway) closeGateway() error {
	ctx, cancel := context.WithTimeout(context.Background(), gatewayCloseWait)
	defer cancel()
	err := g.server.Shutdown(ctx)
	if err != nil {
		err = g.server.Close()
	}
	g.serving.Wait()
	g.client.CloseIdleConnections()
	return err
}
