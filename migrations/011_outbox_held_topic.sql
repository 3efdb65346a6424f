{{if .outbox -}}
-- The relay of the outbox finds what is due without a walk past messages of topics whose queues take none, however many wait.

-- Messages that are tried again, topic by topic. What waits behind another message of its ordering key is due at infinity, and
-- not in it.
CREATE INDEX outbox_held_topic ON {{.schema}}.outbox_held (topic, state, due_at, id)
    WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity';

-- Delayed messages for themselves. What is left in outbox_held_due_at is for relays of older releases.
CREATE INDEX outbox_held_delayed ON {{.schema}}.outbox_held (due_at, id) WHERE state = 'delayed';
DROP INDEX {{.schema}}.outbox_held_due_at;
CREATE INDEX outbox_held_due_at ON {{.schema}}.outbox_held (due_at) WHERE state <> 'dead' AND state <> 'delayed';
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .outbox -}}
DROP INDEX {{.schema}}.outbox_held_due_at;
CREATE INDEX outbox_held_due_at ON {{.schema}}.outbox_held (due_at) WHERE state <> 'dead';
DROP INDEX {{.schema}}.outbox_held_delayed;
DROP INDEX {{.schema}}.outbox_held_topic;
{{- else}}SELECT;{{end}}
