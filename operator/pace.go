package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/migrations"
)

const (
	// paceMinutes is how far back a pace goes.
	paceMinutes = 60

	// maxPaceEnded is how many ended instances a pace reads. It bounds the time of a busy schema.
	maxPaceEnded = 50_000
)

// A Pace says how many instances began and ended in each minute of the last hour.
type Pace struct {
	Minutes []MinutePace // the oldest first, 60; the last one has not ended

	// Known is how many of the last minutes are complete: 60 unless more than 50,000 instances ended in the hour. The
	// counts of earlier minutes are too small.
	Known int
}

// MinutePace counts the instances that began and ended in one minute.
type MinutePace struct{ Started, Completed, Compensated int }

// ReadPace reads the pace of the instances of a schema, nested ones too. Retention of less than an hour makes it too small.
func (n *Instances) ReadPace(ctx context.Context) (p Pace, err error) {
	p = Pace{Minutes: make([]MinutePace, paceMinutes), Known: paceMinutes}
	err = n.readLimited(ctx, func(db querier) error {
		rows, _ := db.Query(ctx, n.sql.readPace, paceMinutes, maxPaceEnded, int(idSkew/time.Minute))
		var minute, started, completed, compensated int
		_, err := pgx.ForEachRow(rows, []any{&minute, &started, &completed, &compensated}, func() error {
			if minute >= 0 {
				p.Minutes[paceMinutes-1-minute] = MinutePace{started, completed, compensated}
			} else if started == maxPaceEnded {
				p.Known = min(completed, paceMinutes)
			}
			return nil
		})
		return err
	})
	if err != nil {
		return Pace{}, fmt.Errorf("operator: read pace: %w", sqlschema.Explain(err))
	}
	return p, nil
}

// A Process is a group of connections to a database with one application name.
type Process struct {
	Name        string // as the connections state it; "": they state none
	Role        string // the login role
	Connections int
}

// sqlListProcesses groups the client connections to the database. A role without pg_read_all_stats sees these columns
// of other roles too.
const sqlListProcesses = `
SELECT application_name, coalesce(usename, ''), count(*)
FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
GROUP BY application_name, usename ORDER BY 3 DESC, 1, 2 LIMIT $1`

// ListProcesses lists who is connected to the database of db, at most [MaxList] groups, the largest first. A pooler
// hides the processes behind it.
func ListProcesses(ctx context.Context, db *pgxpool.Pool) ([]Process, error) {
	var all []Process
	err := pg.NewOwn(db).InTx(ctx, pg.BeginLimitedRead(ctx, ""), func(tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, sqlListProcesses, MaxList)
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Process])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("operator: list processes: %w", err)
	}
	return all, nil
}

// ListSchemas lists the schemas in the database of db that have tables of this module, ordered by name.
func ListSchemas(ctx context.Context, db *pgxpool.Pool) ([]string, error) {
	applied, err := migrations.ListApplied(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("operator: list schemas: %w", err)
	}
	names := make([]string, len(applied))
	for i := range applied {
		names[i] = applied[i].Schema
	}
	return names, nil
}

// ReadClock reads the clock of the database of db.
func ReadClock(ctx context.Context, db *pgxpool.Pool) (at time.Time, err error) {
	err = pg.NewOwn(db).InTx(ctx, pg.BeginLimitedRead(ctx, ""), func(tx pgx.Tx) error { return tx.QueryRow(ctx, sqlReadClock).Scan(&at) })
	if err != nil {
		return at, fmt.Errorf("operator: read clock: %w", err)
	}
	return at, nil
}
