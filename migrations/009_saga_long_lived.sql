{{if .saga -}}
-- Finds an ended instance by its id. An id says when the instance began, so one that ended within ten minutes is found by
-- saga_ended_at. Most instances do, and cost nothing here.
CREATE INDEX saga_long_lived ON {{.schema}}.saga (id) WHERE ended_at - started_at > '10 minutes'::interval;
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .saga -}}
DROP INDEX {{.schema}}.saga_long_lived;
{{- else}}SELECT;{{end}}
