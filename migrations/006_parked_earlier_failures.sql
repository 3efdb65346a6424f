{{if .inbox -}}
-- The failures before the last one, as {"at", "reason", "error", "stack"}: the first one and the newest eight, in the
-- order in which they happened. A long error and a long stack are cut. NOT VALID: the table is not read while it is locked.
ALTER TABLE {{.schema}}.parked ADD COLUMN earlier_failures jsonb NOT NULL DEFAULT '[]',
    ADD CONSTRAINT parked_earlier_failures_check CHECK (jsonb_typeof(earlier_failures) = 'array') NOT VALID;
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .inbox -}}
ALTER TABLE {{.schema}}.parked DROP COLUMN earlier_failures;
{{- else}}SELECT;{{end}}
