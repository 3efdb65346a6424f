package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// sampleEvery is how often the server's sessions are looked at.
const sampleEvery = 5 * time.Millisecond

// sqlReadWaits counts what the active sessions wait for. A session that waits for nothing runs, or could.
const sqlReadWaits = `
SELECT coalesce(wait_event_type || ':' || wait_event, 'running'), count(*)
FROM pg_stat_activity
WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()
GROUP BY 1`

// waits are how many sessions have waited for each event, over all samples.
type waits struct {
	samples int
	events  map[string]int
}

// sampleWaits samples the sessions of config's database until ctx ends.
func sampleWaits(ctx context.Context, config *pgx.ConnConfig) (*waits, error) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	w := &waits{events: make(map[string]int)}
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		rows, _ := conn.Query(ctx, sqlReadWaits)
		var event string
		var n int
		_, err := pgx.ForEachRow(rows, []any{&event, &n}, func() error {
			w.events[event] += n
			return nil
		})
		switch {
		case ctx.Err() != nil:
			return w, nil
		case err != nil:
			return nil, fmt.Errorf("sample wait events: %w", err)
		}
		w.samples++
		select {
		case <-ctx.Done():
			return w, nil
		case <-ticker.C:
		}
	}
}

func (w *waits) add(other *waits) {
	w.samples += other.samples
	for event, n := range other.events {
		w.events[event] += n
	}
}

// String lists the events that most sessions waited for, with the mean number of sessions at a time.
func (w *waits) String() string {
	names := make([]string, 0, len(w.events))
	for event := range w.events {
		names = append(names, event)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(w.events[b]-w.events[a], strings.Compare(a, b)) })
	var parts []string
	for _, event := range names[:min(len(names), 5)] {
		parts = append(parts, fmt.Sprintf("%s %.2f", event, float64(w.events[event])/float64(max(1, w.samples))))
	}
	return strings.Join(parts, ", ")
}
