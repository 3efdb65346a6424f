package main

import (
	"fmt"
	"net/http"
)

// metrics answers in Prometheus' text format.
func (a *app) metrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if !a.started.Load() {
		fmt.Fprintln(w, "# starting or stopping")
		return
	}
	gauge := func(name, help string, value func(*node) (map[string]float64, error)) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
		for _, n := range a.nodes {
			if n.consumer == nil {
				continue
			}
			values, err := value(n)
			if err != nil {
				fmt.Fprintf(w, "# %s: the database does not answer\n", n.name)
				continue
			}
			for _, state := range []string{"stored", "delayed", "refused", "retrying", "dead", ""} {
				if v, ok := values[state]; ok {
					fmt.Fprintf(w, "%s{service=%q,state=%q} %g\n", name, n.name, state, v)
				}
			}
		}
	}
	gauge("sagamill_outbox_messages", "Messages that have not been published, by state.", func(n *node) (map[string]float64, error) {
		s, err := n.relay.Stats(r.Context())
		return map[string]float64{"stored": float64(s.Stored), "delayed": float64(s.Delayed), "refused": float64(s.Refused), "dead": float64(s.Dead)}, err
	})
	gauge("sagamill_outbox_oldest_seconds", "Age of the oldest message that has not been published.", func(n *node) (map[string]float64, error) {
		s, err := n.relay.Stats(r.Context())
		return map[string]float64{"stored": s.Oldest.Seconds()}, err
	})
	gauge("sagamill_parked_messages", "Messages that are parked, by state.", func(n *node) (map[string]float64, error) {
		s, err := n.consumer.Stats(r.Context())
		return map[string]float64{"retrying": float64(s.Retrying), "dead": float64(s.Dead)}, err
	})
}
