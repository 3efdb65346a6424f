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
-- saga_live finds and counts live instances by their status, in the order in which they began, without reading the rows of
-- others. saga_held counts the running ones that wait for a person at a participant. A move that keeps status, reason and
-- tries changes no column of either index.
--
-- Orchestrators wait while the indexes are built: two seconds for a million instances. Readers wait only for the removal
-- of the old index, at the end. The lock comes first, so that no orchestrator holds a row when the removal needs more.
LOCK TABLE {{.schema}}.saga IN EXCLUSIVE MODE;
CREATE INDEX saga_live_status ON {{.schema}}.saga (status, id, name, version) WHERE ended_at IS NULL;
CREATE INDEX saga_held ON {{.schema}}.saga (root) WHERE ended_at IS NULL AND status = 'running' AND reason <> '' AND tries = 0;
DROP INDEX {{.schema}}.saga_live;
ALTER INDEX {{.schema}}.saga_live_status RENAME TO saga_live;
{{end}}SELECT;

---- create above / drop below ----

{{if .inbox -}}
DROP INDEX {{.schema}}.parked_dead_id, {{.schema}}.parked_dead_correlation, {{.schema}}.parked_dead_cause;
{{end}}
{{- if .saga -}}
DROP INDEX {{.schema}}.saga_held, {{.schema}}.saga_live;
CREATE INDEX saga_live ON {{.schema}}.saga (name, version, id) WHERE ended_at IS NULL;
{{end}}SELECT;
