-- The mark of this numbering of migrations: a pre-release had another one, whose schemas lack it (errPreRelease).
COMMENT ON TABLE {{.schema}}.schema_version IS 'sagamill migrations';

{{if .idempotency -}}
-- One record per (namespace, scope, key): what package idemkey remembers of a request.
-- state: 1 in progress, 2 failed (bound to its fingerprint, may run again), 3 completed, 4 tombstone (body not kept).
-- No CHECK repeats what package idemkey checks before it writes: the server parses each of them for every statement, which
-- costs a seventh of a first request (docs/decisions, 018).
CREATE TABLE {{.schema}}.idempotency_key (
    namespace    text COLLATE "C" NOT NULL,
    scope        text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    state        smallint    NOT NULL,
    fp           bytea       NOT NULL,
    fp_alg       text        NOT NULL,
    token        uuid        NOT NULL,
    attempt      integer     NOT NULL,
    lease_until  timestamptz NOT NULL,
    resp_status  smallint,
    resp_header  bytea,
    resp_body    bytea, -- bytea, since jsonb would change key order, duplicates and numbers
    enc_key_id   text,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at timestamptz,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (namespace, scope, key)
) WITH (fillfactor = 80); -- room for the update on completion to stay on the page

CREATE INDEX idempotency_key_expires_at ON {{.schema}}.idempotency_key (expires_at);
{{- end}}

---- create above / drop below ----

{{if .idempotency -}}
DROP TABLE {{.schema}}.idempotency_key;
{{- else}}SELECT;{{end}}
