package shopdb

import (
	"context"
)

const countFree = `-- name: CountFree :one
SELECT free FROM shop.stock WHERE item = $1
`

func (q *Queries) CountFree(ctx context.Context, item string) (int64, error) {
	row := q.db.QueryRow(ctx, countFree, item)
	var free int64
	err := row.Scan(&free)
	return free, err
}

const takeFromStock = `-- name: TakeFromStock :execrows
UPDATE shop.stock SET free = free - $2 WHERE item = $1 AND free >= $2
`

type TakeFromStockParams struct {
	Item string
	Free int64
}

func (q *Queries) TakeFromStock(ctx context.Context, arg TakeFromStockParams) (int64, error) {
	result, err := q.db.Exec(ctx, takeFromStock, arg.Item, arg.Free)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected(), nil
}
