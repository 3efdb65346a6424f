{{if .inbox -}}
-- Find a dead letter by its own id, or by the id of its correlation or of its cause, which are headers. A message that is
-- retried is not in the indexes, so that an attempt costs nothing more. An entry is cut, because an index takes none of more
-- than 2,700 bytes. operator.sqlFindParkedMessages has the same expressions.
--
-- Consumers wait while the indexes are made: a second for 100,000 dead letters.
CREATE INDEX parked_dead_id ON {{.schema}}.parked (substring(message_id FROM 1 FOR 255)) WHERE state = 'dead';
CREATE INDEX parked_dead_correlation ON {{.schema}}.parked
    (substring(header_values[array_position(header_names, 'correlation-id'::bytea)] FROM 1 FOR 255)) WHERE state = 'dead';
CREATE INDEX parked_dead_cause ON {{.schema}}.parked
    (substring(header_values[array_position(header_names, 'x-causation-id'::bytea)] FROM 1 FOR 255)) WHERE state = 'dead';
{{end}}
{{- if .saga -}}
-- Count live instances by status, and those that wait for a person at a participant, without their rows. An instance that
-- moves on and keeps its status changes no column of these indexes, so that its update stays within its page (HOT).
DROP INDEX {{.schema}}.saga_live;
CREATE INDEX saga_live ON {{.schema}}.saga (name, version, id, status) WHERE ended_at IS NULL;
CREATE INDEX saga_held ON {{.schema}}.saga (name, version) WHERE ended_at IS NULL AND status = 'running' AND reason <> '' AND tries = 0;
{{end}}SELECT;

---- create above / drop below ----

{{if .inbox -}}
DROP INDEX {{.schema}}.parked_dead_id, {{.schema}}.parked_dead_correlation, {{.schema}}.parked_dead_cause;
{{end}}
{{- if .saga -}}
DROP INDEX {{.schema}}.saga_held, {{.schema}}.saga_live;
CREATE INDEX saga_live ON {{.schema}}.saga (name, version, id) WHERE ended_at IS NULL;
{{end}}SELECT;
