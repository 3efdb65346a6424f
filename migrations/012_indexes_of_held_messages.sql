{{if .outbox -}}
-- outbox_held_groups is to dead letters of the outbox what parked_groups is to those of steps. The other indexes find held
-- messages by key, and dead letters by their own id, or by the id of their correlation or their cause. Only the index of
-- keys has messages that are delayed or retried, so that these cost little more.
--
-- The relay waits while the indexes are built, and so do transactions that write delayed messages: a second for 100,000
-- messages. This is a migration of its own: one that also held a lock on another table could wait for a consumer that
-- waits for it.
CREATE INDEX outbox_held_groups ON {{.schema}}.outbox_held (topic, step, fingerprint, refused_at) INCLUDE (id) WHERE state = 'dead';
CREATE INDEX outbox_held_key ON {{.schema}}.outbox_held (key);
CREATE INDEX outbox_held_dead_id ON {{.schema}}.outbox_held (message_id) WHERE state = 'dead';
CREATE INDEX outbox_held_dead_correlation ON {{.schema}}.outbox_held (correlation_id) WHERE state = 'dead';
CREATE INDEX outbox_held_dead_cause ON {{.schema}}.outbox_held (causation_id) WHERE state = 'dead';
{{end}}SELECT;

---- create above / drop below ----

{{if .outbox -}}
DROP INDEX {{.schema}}.outbox_held_groups, {{.schema}}.outbox_held_key, {{.schema}}.outbox_held_dead_id,
    {{.schema}}.outbox_held_dead_correlation, {{.schema}}.outbox_held_dead_cause;
{{end}}SELECT;
