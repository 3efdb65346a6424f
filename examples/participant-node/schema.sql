-- What this service keeps, in a schema of its own. Applied at each start.
CREATE SCHEMA IF NOT EXISTS shipping_node;

-- A row for each step that was done, with the answer that was given. scope, key, step and n
-- together are the identity of the step: one column that joins them would not be.
CREATE TABLE IF NOT EXISTS shipping_node.inbox (
    scope        text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    step         text COLLATE "C" NOT NULL,
    n            text COLLATE "C" NOT NULL,
    digest       bytea       NOT NULL, -- SHA-256 of the payload
    answer_id    uuid        NOT NULL, -- the message-id of the answer, however often it is published
    answer_topic text        NOT NULL,
    answer_step  text        NOT NULL, -- the step that the answer is for
    answer_body  text        NOT NULL, -- text, not jsonb: the receiver compares bytes
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, key, step, n)
);

CREATE TABLE IF NOT EXISTS shipping_node.shipment (
    order_id   uuid PRIMARY KEY,
    state      text        NOT NULL CHECK (state IN ('arranged', 'rejected')),
    item       text        NOT NULL,
    quantity   integer     NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
