{{if .inbox -}}
-- Finds a parked message by its own id, or by the id of its correlation or of its cause. The headers have the last two. An
-- entry is cut: the index takes none of more than 2,700 bytes. Only what reads ids uses the same expression
-- (operator.sqlFindParkedMessages). Without a list of pending entries, no message that is parked has to write those of others.
CREATE INDEX parked_ids ON {{.schema}}.parked USING gin ((ARRAY[
    substring(message_id FROM 1 FOR 255),
    substring(header_values[array_position(header_names, 'correlation-id'::bytea)] FROM 1 FOR 255),
    substring(header_values[array_position(header_names, 'x-causation-id'::bytea)] FROM 1 FOR 255)])) WITH (fastupdate = off);
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .inbox -}}
DROP INDEX {{.schema}}.parked_ids;
{{- else}}SELECT;{{end}}
