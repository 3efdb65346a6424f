CREATE TABLE {{.schema}}.payment (
    order_id   uuid PRIMARY KEY,
    state      text        NOT NULL CHECK (state IN ('charged', 'declined', 'refunded')),
    amount     bigint      NOT NULL,
    currency   text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

---- create above / drop below ----

DROP TABLE {{.schema}}.payment;
