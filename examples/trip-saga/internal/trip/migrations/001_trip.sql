-- The trips that customers have asked for. What becomes of one is its saga's to
-- say: scope and key lead there.
CREATE TABLE {{.schema}}.trip (
    id         uuid PRIMARY KEY, -- of the saga's instance
    tenant     text        NOT NULL,
    key        text        NOT NULL,
    path       text        NOT NULL, -- of the instance: a key that is used again begins another one
    traveller  text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What things cost, in cents.
CREATE TABLE {{.schema}}.tariff (
    kind  text   NOT NULL,
    item  text   NOT NULL,
    price bigint NOT NULL CHECK (price > 0),
    PRIMARY KEY (kind, item)
);

INSERT INTO {{.schema}}.tariff (kind, item, price) VALUES
    ('flight', 'LH100', 20000), ('flight', 'ZZ9', 15000), ('flight', 'GONE', 9000),
    ('hotel', 'grand', 30000), ('hotel', 'full-house', 12000), ('hotel', 'slow-inn', 8000), ('hotel', 'late-inn', 7000), ('hotel', 'silent-inn', 6000),
    ('car', 'compact', 5000), ('car', 'convertible', 11000);

-- What a traveller is given in the end.
CREATE TABLE {{.schema}}.itinerary (
    trip_id uuid PRIMARY KEY REFERENCES {{.schema}}.trip,
    text    text        NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

---- create above / drop below ----

DROP TABLE {{.schema}}.itinerary;
DROP TABLE {{.schema}}.tariff;
DROP TABLE {{.schema}}.trip;
