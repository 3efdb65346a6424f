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

// errNoSchedstat reports that this system does not provide processor time.
var errNoSchedstat = errors.New("no /proc/PID/schedstat on this machine")

// A meter measures the processor time of one application's sessions. It keeps the last reading of a session
// that has ended. It misses sessions that begin and end between two readings, such as parallel workers.
type meter struct {
	pool        *pgxpool.Pool
	application string
	seen        map[int]time.Duration
}

// openMeter returns a meter of the relay's sessions at p.
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

// onProcessor returns a process's processor time in nanoseconds. The ticks of /proc/PID/stat are too coarse for
// a few seconds of a relay.
func onProcessor(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(content), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err
}
