CREATE TABLE {{.schema}}.orders (
    id         uuid PRIMARY KEY,
    tenant     text        NOT NULL,
    item       text        NOT NULL,
    quantity   integer     NOT NULL CHECK (quantity > 0),
    amount     bigint      NOT NULL CHECK (amount > 0), -- in the currency's minor unit
    currency   text        NOT NULL,
    status     text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'paid', 'completed', 'cancelled')),
    reason     text        NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What the order service has heard of the saga's steps.
CREATE TABLE {{.schema}}.order_step (
    order_id uuid        NOT NULL REFERENCES {{.schema}}.orders,
    position integer     NOT NULL,
    step     text        NOT NULL,
    state    text        NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'done', 'rejected', 'compensated', 'skipped')),
    attempts integer     NOT NULL DEFAULT 0,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (order_id, step)
);

---- create above / drop below ----

DROP TABLE {{.schema}}.order_step;
DROP TABLE {{.schema}}.orders;
