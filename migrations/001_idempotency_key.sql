{{if .idempotency -}}
-- One record per (namespace, scope, key): what package idemkey remembers of a request.
-- state: 1 in progress, 2 failed (bound to its fingerprint, may run again), 3 completed, 4 tombstone (body not kept).
CREATE TABLE {{.schema}}.idempotency_key (
    namespace    text COLLATE "C" NOT NULL CHECK (octet_length(namespace) BETWEEN 1 AND 128),
    scope        text COLLATE "C" NOT NULL CHECK (octet_length(scope) BETWEEN 1 AND 255),
    key          text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    state        smallint    NOT NULL CHECK (state BETWEEN 1 AND 4),
    fp           bytea       NOT NULL,
    fp_alg       text        NOT NULL,
    token        uuid        NOT NULL,
    attempt      integer     NOT NULL CHECK (attempt >= 1),
    lease_until  timestamptz NOT NULL,
    resp_status  smallint,
    resp_header  bytea,
    resp_body    bytea, -- bytea, since jsonb would change key order, duplicates and numbers
    enc_key_id   text,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at timestamptz,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (namespace, scope, key),
    CHECK (state NOT IN (3, 4) OR (resp_status IS NOT NULL AND completed_at IS NOT NULL)),
    CHECK (state = 3 OR resp_body IS NULL)
) WITH (fillfactor = 80); -- room for the update on completion to stay on the page

CREATE INDEX idempotency_key_expires_at ON {{.schema}}.idempotency_key (expires_at);
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .idempotency -}}
DROP TABLE {{.schema}}.idempotency_key;
{{- else}}SELECT;{{end}}
