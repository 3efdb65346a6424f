{{if .inbox -}}
-- How often a message was redriven. Attempts begin anew then, so that they alone do not tell an attempt that hangs since
-- before from one of now.
ALTER TABLE {{.schema}}.parked ADD COLUMN round integer NOT NULL DEFAULT 0 CHECK (round >= 0);
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .inbox -}}
ALTER TABLE {{.schema}}.parked DROP COLUMN round;
{{- else}}SELECT;{{end}}
