{{if .idempotency -}}
-- Records with state 5 (it may have run, and a decision is awaited) never expire, and neither do those in progress whose
-- handler has effects outside of the database. The index finds both, for the limit of a scope and for those who decide. All
-- other records are in no part of it, so they cost nothing more.
--
-- Requests with a key wait while the index is made: a second for a million records.
CREATE INDEX idempotency_key_unknown ON {{.schema}}.idempotency_key (namespace, scope, key) WHERE expires_at = 'infinity';
{{else}}SELECT;{{end}}

---- create above / drop below ----

{{if .idempotency -}}
DROP INDEX {{.schema}}.idempotency_key_unknown;
{{else}}SELECT;{{end}}
