package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errNoSchedstat is why processor time cannot be measured on other systems.
var errNoSchedstat = errors.New("no /proc/PID/schedstat on this machine")

// A meter tells how long the sessions of one application have been on a
// processor. A session that has ended keeps the time that it was last seen with;
// one that came and went between two readings, as parallel workers do, is missed.
type meter struct {
	pool        *pgxpool.Pool
	application string
	seen        map[int]time.Duration
}

// openMeter asks over pool about the sessions of the relay at p.
func openMeter(p *place) (*meter, error) {
	if _, err := onProcessor(os.Getpid()); err != nil {
		return nil, errNoSchedstat
	}
	return &meter{pool: p.pool, application: p.relays.Config().ConnConfig.RuntimeParams["application_name"], seen: map[int]time.Duration{}}, nil
}

// readProcessorTime returns the time of all sessions since they began.
func (m *meter) readProcessorTime(ctx context.Context) (time.Duration, error) {
	rows, _ := m.pool.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE application_name = $1", m.application)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		d, err := onProcessor(pid)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil {
			return 0, err
		}
		m.seen[pid] = d
	}
	var total time.Duration
	for _, d := range m.seen {
		total += d
	}
	return total, nil
}

// onProcessor returns how long a process has been running, to the nanosecond:
// the ticks of /proc/PID/stat are too coarse for a few seconds of a relay.
func onProcessor(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(content), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err
}
