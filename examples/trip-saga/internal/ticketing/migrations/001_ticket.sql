-- There is no unique key on the trip on purpose: a second ticket must show.
CREATE TABLE {{.schema}}.ticket (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    trip_id   uuid        NOT NULL,
    traveller text        NOT NULL,
    number    text        NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

---- create above / drop below ----

DROP TABLE {{.schema}}.ticket;
