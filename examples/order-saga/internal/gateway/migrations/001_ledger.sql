-- Every movement of money. There is no unique key on purpose: a double charge
-- must show.
CREATE TABLE {{.schema}}.ledger (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind     text        NOT NULL CHECK (kind IN ('charge', 'refund')),
    key      text        NOT NULL,
    order_id text        NOT NULL,
    amount   bigint      NOT NULL CHECK (amount > 0),
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX ledger_order_id ON {{.schema}}.ledger (order_id);

---- create above / drop below ----

DROP TABLE {{.schema}}.ledger;
