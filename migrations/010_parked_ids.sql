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
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .inbox -}}
DROP INDEX {{.schema}}.parked_dead_id, {{.schema}}.parked_dead_correlation, {{.schema}}.parked_dead_cause;
{{- else}}SELECT;{{end}}
