CREATE TABLE {{.schema}}.shipment (
    order_id   uuid PRIMARY KEY,
    state      text        NOT NULL CHECK (state IN ('arranged', 'rejected')),
    item       text        NOT NULL,
    quantity   integer     NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

---- create above / drop below ----

DROP TABLE {{.schema}}.shipment;
