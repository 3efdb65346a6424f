{{if .idempotency -}}
-- The checks that package idemkey makes before it writes cost a seventh of a
-- first request when the server makes them again: it parses each of them for
-- every statement (docs/design.md, 18).
ALTER TABLE {{.schema}}.idempotency_key
    DROP CONSTRAINT idempotency_key_namespace_check,
    DROP CONSTRAINT idempotency_key_scope_check,
    DROP CONSTRAINT idempotency_key_key_check,
    DROP CONSTRAINT idempotency_key_state_check,
    DROP CONSTRAINT idempotency_key_attempt_check,
    DROP CONSTRAINT idempotency_key_check,
    DROP CONSTRAINT idempotency_key_check1;
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .idempotency -}}
ALTER TABLE {{.schema}}.idempotency_key
    ADD CONSTRAINT idempotency_key_namespace_check CHECK (octet_length(namespace) BETWEEN 1 AND 128),
    ADD CONSTRAINT idempotency_key_scope_check CHECK (octet_length(scope) BETWEEN 1 AND 255),
    ADD CONSTRAINT idempotency_key_key_check CHECK (octet_length(key) BETWEEN 1 AND 255),
    ADD CONSTRAINT idempotency_key_state_check CHECK (state BETWEEN 1 AND 4),
    ADD CONSTRAINT idempotency_key_attempt_check CHECK (attempt >= 1),
    ADD CONSTRAINT idempotency_key_check CHECK (state NOT IN (3, 4) OR (resp_status IS NOT NULL AND completed_at IS NOT NULL)),
    ADD CONSTRAINT idempotency_key_check1 CHECK (state = 3 OR resp_body IS NULL);
{{- else}}SELECT;{{end}}
