package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// requestsPerRound are those of one kind, after which another kind has its turn.
const requestsPerRound = 20

// A kind is what the requests of one turn have in common, with what each round has cost for one request.
type kind struct {
	name      string
	send      func(n int) int // returns the status
	want      int
	wall, cpu []float64 // microseconds
}

// BenchmarkGateway compares requests through the gateway with those through the bare proxy. Both are sent in turns, so a
// ratio compares what has run in the same second. Processor time is that of client, gateway and upstream together, and
// not that of PostgreSQL and Redis. Nothing is logged.
func BenchmarkGateway(b *testing.B) {
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.DiscardHandler))
	for _, name := range storeNames {
		b.Run(name, func(b *testing.B) {
			kinds, release := newKinds(b, name)
			defer release()
			for range b.N {
				for _, k := range kinds {
					k.runRound(b)
				}
			}
			b.ReportMetric(0, "ns/op") // is of all kinds together
			bare := kinds[0]
			b.ReportMetric(median(bare.wall), "bare-µs")
			b.ReportMetric(median(bare.cpu), "bare-cpu-µs")
			for _, k := range kinds[1:] {
				b.ReportMetric(median(k.wall)-median(bare.wall), k.name+"-added-µs")
				b.ReportMetric(median(ratios(k.wall, bare.wall)), k.name+"/bare")
				b.ReportMetric(median(ratios(k.cpu, bare.cpu)), k.name+"-cpu/bare")
			}
		})
	}
}

// newKinds returns bare first. release ends the request in flight.
func newKinds(b *testing.B, store string) (kinds []*kind, release func()) {
	leave, arrived := make(chan struct{}), make(chan struct{})
	upstream := serve(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "held") {
			close(arrived)
			<-leave
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id":"ch-1","amount":4200,"tenant":"acme"}`))
	}))
	s := newSite(b, newStore(b, store), upstream, func(s *settings) {
		s.HeaderTimeout, s.ExecTimeout = time.Hour, 2*time.Hour // of the request in flight
	})
	bare := httptest.NewServer(&httputil.ReverseProxy{Transport: s.gateway.transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(s.gateway.Upstream)
		r.SetXForwarded()
	}})
	b.Cleanup(bare.Close)
	plain := &site{t: b, url: bare.URL}
	done := make(chan int, 1)
	go func() { done <- s.charge("acme", "held", "held").status }()
	<-arrived
	release = func() {
		close(leave)
		if status := <-done; status != http.StatusCreated {
			b.Errorf("the request in flight ended with %d", status)
		}
	}
	s.expect("the request that is replayed", s.charge("acme", "kept", "good"), 201, "")
	return []*kind{
		{name: "bare", want: 201, send: func(n int) int { return plain.charge("acme", "k"+strconv.Itoa(n), "good").status }},
		{name: "first", want: 201, send: func(n int) int { return s.charge("acme", "k"+strconv.Itoa(n), "good").status }},
		{name: "in-flight", want: 409, send: func(int) int { return s.charge("acme", "held", "held").status }},
		{name: "replay", want: 201, send: func(int) int { return s.charge("acme", "kept", "good").status }},
	}, release
}

func (k *kind) runRound(b *testing.B) {
	began, cpu := time.Now(), cpuTime()
	for n := range requestsPerRound {
		if status := k.send(len(k.wall)*requestsPerRound + n); status != k.want {
			b.Fatalf("%s: %d, want %d", k.name, status, k.want)
		}
	}
	k.wall = append(k.wall, float64(time.Since(began).Microseconds())/requestsPerRound)
	k.cpu = append(k.cpu, float64((cpuTime()-cpu).Microseconds())/requestsPerRound)
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
