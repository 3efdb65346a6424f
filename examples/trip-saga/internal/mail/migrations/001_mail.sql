-- Mails and bounces. There is no unique key on the trip on purpose: a second mail
-- must show.
CREATE TABLE {{.schema}}.mail (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    trip_id   uuid        NOT NULL,
    traveller text        NOT NULL,
    state     text        NOT NULL CHECK (state IN ('sent', 'bounced')),
    ticket    text        NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX mail_trip_id ON {{.schema}}.mail (trip_id);

---- create above / drop below ----

DROP TABLE {{.schema}}.mail;
