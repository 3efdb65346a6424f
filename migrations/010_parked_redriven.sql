{{if .inbox -}}
-- When a message was sent round by an operator last. NULL: never, or by a release that did not say. Until an attempt has begun
-- since, which is later in last_at, nothing but this tells that a call may have been under way, or be forgotten, before it.
ALTER TABLE {{.schema}}.parked ADD COLUMN redriven_at timestamptz;
UPDATE {{.schema}}.parked SET redriven_at = clock_timestamp() WHERE state = 'retrying' AND round > 0;
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .inbox -}}
ALTER TABLE {{.schema}}.parked DROP COLUMN redriven_at;
{{- else}}SELECT;{{end}}
