{{if .saga -}}
-- Finds an instance by its id. An id says when the instance began, so an ended one is found by saga_ended_at if it ended
-- within ten minutes, as most do. The others are in saga_long_lived. The id is the last column of the other two indexes, so
-- that a search compares the ids in the index and reads no rows.
DROP INDEX {{.schema}}.saga_live, {{.schema}}.saga_ended_at;
CREATE INDEX saga_live ON {{.schema}}.saga (name, version, id) WHERE ended_at IS NULL;
CREATE INDEX saga_ended_at ON {{.schema}}.saga (ended_at, id) WHERE ended_at IS NOT NULL;
CREATE INDEX saga_long_lived ON {{.schema}}.saga (id) WHERE ended_at - started_at > '10 minutes'::interval;
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .saga -}}
DROP INDEX {{.schema}}.saga_live, {{.schema}}.saga_ended_at, {{.schema}}.saga_long_lived;
CREATE INDEX saga_live ON {{.schema}}.saga (name, version) WHERE ended_at IS NULL;
CREATE INDEX saga_ended_at ON {{.schema}}.saga (ended_at) WHERE ended_at IS NOT NULL;
{{- else}}SELECT;{{end}}
