{{if .inbox -}}
-- parked_groups has dead letters in the order of their groups: topic, reason, step and fingerprint. So they are counted
-- without hashing the four texts of each.
--
-- Consumers wait while the index is built: half a second for 100,000 dead letters.
CREATE INDEX parked_groups ON {{.schema}}.parked (topic, reason, step, fingerprint, last_at) INCLUDE (id, kind) WHERE state = 'dead';
{{end}}SELECT;

---- create above / drop below ----

{{if .inbox -}}
DROP INDEX {{.schema}}.parked_groups;
{{end}}SELECT;
