{{if .outbox -}}
-- The relay of the outbox finds what is due without a walk past messages of topics whose queues take none, however many wait.

-- Messages that are tried again, topic by topic. What waits behind another message of its ordering key is due at infinity, and
-- not in it.
CREATE INDEX outbox_held_topic ON {{.schema}}.outbox_held (topic, state, due_at, id)
    WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity';

-- Delayed messages for themselves. outbox_held_due_at has both, topic by topic mixed: a planner that takes it walks past all of
-- one topic to find a message of another. Relays of older releases do without it meanwhile.
CREATE INDEX outbox_held_delayed ON {{.schema}}.outbox_held (due_at, id) WHERE state = 'delayed';
DROP INDEX {{.schema}}.outbox_held_due_at;
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .outbox -}}
CREATE INDEX outbox_held_due_at ON {{.schema}}.outbox_held (due_at) WHERE state <> 'dead';
DROP INDEX {{.schema}}.outbox_held_delayed;
DROP INDEX {{.schema}}.outbox_held_topic;
{{- else}}SELECT;{{end}}
