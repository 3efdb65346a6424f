{{if .inbox -}}
-- What redrive, effects and retention need.

-- digest: SHA-256 of the payload as it first came, which is the step's identity also after somebody has edited it; null:
-- that of the payload. in_doubt: an attempt may have had an effect outside the database, of which nobody knows.
ALTER TABLE {{.schema}}.parked
    ADD COLUMN digest   bytea CHECK (octet_length(digest) = 32),
    ADD COLUMN in_doubt boolean NOT NULL DEFAULT false;

-- A message that could not be read may be redriven too, once somebody has mended it or the consumer: retrying without an
-- identity, which a consumer of its topic gives it.
ALTER TABLE {{.schema}}.parked
    DROP CONSTRAINT parked_check1,
    ADD CONSTRAINT parked_check1 CHECK (state = 'dead' OR (key IS NULL) = (kind = 'unknown'));

CREATE INDEX parked_key ON {{.schema}}.parked (scope, key); -- of a saga

-- Rows of inbox that were moved last before swept_before may be gone. So a message that is older, and has no row, may
-- have run already. One row, always; it only rises, and before anything is removed.
CREATE TABLE {{.schema}}.inbox_horizon (
    one          boolean     PRIMARY KEY DEFAULT true CHECK (one),
    swept_before timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO {{.schema}}.inbox_horizon DEFAULT VALUES;
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .inbox -}}
DROP TABLE {{.schema}}.inbox_horizon;
DROP INDEX {{.schema}}.parked_key;
UPDATE {{.schema}}.parked SET state = 'dead' WHERE state = 'retrying' AND key IS NULL;
ALTER TABLE {{.schema}}.parked
    DROP CONSTRAINT parked_check1,
    ADD CONSTRAINT parked_check1 CHECK (state = 'dead' OR (key IS NOT NULL AND kind <> 'unknown')),
    DROP COLUMN in_doubt,
    DROP COLUMN digest;
{{- else}}SELECT;{{end}}
