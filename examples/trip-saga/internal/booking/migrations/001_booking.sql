-- What there is to book, and how much of it nobody holds.
CREATE TABLE {{.schema}}.stock (
    item     text   PRIMARY KEY,
    capacity bigint NOT NULL CHECK (capacity >= 0),
    free     bigint NOT NULL CHECK (free BETWEEN 0 AND capacity)
);

-- Who holds a unit, or has held one. There is no unique key on the trip on
-- purpose: a double booking must show.
CREATE TABLE {{.schema}}.booking (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    trip_id uuid        NOT NULL,
    n       text        NOT NULL, -- which of the saga's commands it was booked by
    item    text        NOT NULL REFERENCES {{.schema}}.stock,
    state   text        NOT NULL CHECK (state IN ('held', 'released')),
    number  text        NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX booking_trip_id ON {{.schema}}.booking (trip_id);

---- create above / drop below ----

DROP TABLE {{.schema}}.booking;
DROP TABLE {{.schema}}.stock;
