-- name: TakeFromStock :execrows
UPDATE shop.stock SET free = free - $2 WHERE item = $1 AND free >= $2;

-- name: CountFree :one
SELECT free FROM shop.stock WHERE item = $1;
