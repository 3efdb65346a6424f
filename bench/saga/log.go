package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/bench/internal/private"
)

const logPart = "log"

// sqlReadLog adds up the records of a part of the write-ahead log, by table or index and by kind. A record without a
// block, such as that of a commit, has no relation. A table that was truncated since has another file.
const sqlReadLog = `
SELECT coalesce(c.relname, CASE WHEN r.file IS NULL THEN '' ELSE 'truncated since' END) AS relation,
	r.kind, count(*), sum(r.record_length)::bigint AS bytes
FROM (
	SELECT resource_manager || ' ' || record_type AS kind, record_length, substring(block_ref FROM 'rel \d+/\d+/(\d+)')::oid AS file
	FROM public.pg_get_wal_records_info('0/0'::pg_lsn + $1::bigint, least('0/0'::pg_lsn + $2::bigint, pg_current_wal_flush_lsn()))
) AS r
LEFT JOIN pg_class AS c ON c.relfilenode = r.file AND c.relfilenode <> 0
GROUP BY 1, 2 ORDER BY bytes DESC`

// measureLog prints where the bytes of a saga in the write-ahead log come from, under saturation.
func (b *bench) measureLog(ctx context.Context, server *private.Server, subjects []*subject) error {
	for _, s := range subjects {
		if _, err := s.all.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_walinspect SCHEMA public"); err != nil {
			return err
		}
		if err := s.measureCapacity(ctx, b.slice); err != nil {
			return err
		}
		o, err := s.measureSlice(ctx, s.sagas, s.inFlight, offerSaturating)
		if err != nil {
			return err
		}
		fmt.Printf("log %-6s %-20s %d sagas, %.0f bytes of log for each\n", server.Name, s.name, o.sagas, float64(o.spent.logged)/float64(o.sagas))
		if err := s.printLogShares(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// printLogShares prints what each relation and kind of record has in the log of a slice.
func (s *subject) printLogShares(ctx context.Context, o outcome) error {
	rows, err := s.all.Query(ctx, "SELECT * FROM ("+sqlReadLog+") AS shares", o.logFrom, o.logTo)
	if err != nil {
		return err
	}
	var (
		relation, kind string
		records, bytes int64
	)
	_, err = pgx.ForEachRow(rows, []any{&relation, &kind, &records, &bytes}, func() error {
		n := float64(o.sagas)
		fmt.Printf("log %-6s %-20s %-28s %-32s %7.3f records %8.1f bytes\n", s.server.Name, s.name, relation, kind, float64(records)/n, float64(bytes)/n)
		return nil
	})
	return err
}
