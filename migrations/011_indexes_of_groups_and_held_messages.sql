{{if .inbox -}}
-- parked_groups counts dead letters by topic, reason, step and fingerprint: in its order, no group is sorted or hashed.
-- parked_dead gives the statistics, and keeps only what they read.
--
-- Consumers wait while the indexes are built: a second for 100,000 dead letters.
DROP INDEX {{.schema}}.parked_dead;
CREATE INDEX parked_dead ON {{.schema}}.parked (last_at) INCLUDE (step, kind, reason, first_at) WHERE state = 'dead';
CREATE INDEX parked_groups ON {{.schema}}.parked (topic, reason, step, fingerprint, last_at) INCLUDE (id, kind) WHERE state = 'dead';
{{end}}
{{- if .outbox -}}
-- The same for dead letters of the outbox. The other indexes find held messages by key, and dead letters by their own id,
-- or by the id of their correlation or their cause. Only one of them has messages that are delayed or retried, so that
-- these cost little more.
CREATE INDEX outbox_held_groups ON {{.schema}}.outbox_held (topic, step, fingerprint, refused_at) INCLUDE (id) WHERE state = 'dead';
CREATE INDEX outbox_held_key ON {{.schema}}.outbox_held (key);
CREATE INDEX outbox_held_dead_id ON {{.schema}}.outbox_held (message_id) WHERE state = 'dead';
CREATE INDEX outbox_held_dead_correlation ON {{.schema}}.outbox_held (correlation_id) WHERE state = 'dead';
CREATE INDEX outbox_held_dead_cause ON {{.schema}}.outbox_held (causation_id) WHERE state = 'dead';
{{end}}SELECT;

---- create above / drop below ----

{{if .inbox -}}
DROP INDEX {{.schema}}.parked_groups, {{.schema}}.parked_dead;
CREATE INDEX parked_dead ON {{.schema}}.parked (last_at) INCLUDE (id, topic, step, kind, reason, fingerprint, first_at) WHERE state = 'dead';
{{end}}
{{- if .outbox -}}
DROP INDEX {{.schema}}.outbox_held_groups, {{.schema}}.outbox_held_key, {{.schema}}.outbox_held_dead_id,
    {{.schema}}.outbox_held_dead_correlation, {{.schema}}.outbox_held_dead_cause;
{{end}}SELECT;
