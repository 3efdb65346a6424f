-- How often each reference was used, for cards that something happens to the first time: without idempotency nothing
-- else remembers.
CREATE TABLE {{.schema}}.reference (
    key      text    PRIMARY KEY,
    attempts integer NOT NULL
);

CREATE INDEX ledger_key ON {{.schema}}.ledger (key); -- to be asked for

---- create above / drop below ----

DROP INDEX {{.schema}}.ledger_key;
DROP TABLE {{.schema}}.reference;
