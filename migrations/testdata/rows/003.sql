INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, undo_attempts, digest, undo_digest)
SELECT 's', 'k', 'step', state, state, 1, 1, sha256('a'), sha256('b')
FROM unnest('{open,retrying,dead,done,void,undoing,undo-dead,compensated}'::text[]) state;

INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, stack, attempts, due_at) VALUES
    ('retrying', 'action', 's', 'k', 'step', 'retrying', 't', '\xff', '{h}', '{v}', '\x00', 'handler-error', 'e', 's', 3, now()),
    ('retrying', 'compensation', 's', 'k', 'step', 'undoing', 't', 'm', '{}', '{}', 'p', 'handler-error', 'e', '', 1, now()),
    ('dead', 'action', 's', 'k', 'step', 'dead', 't', 'm', '{}', '{}', 'p', 'terminal', 'e', '', 1, now()),
    ('dead', 'compensation', 's', 'k', 'step', 'undo-dead', 't', 'm', '{}', '{}', 'p', 'terminal', 'e', '', 1, now()),
    ('dead', 'unknown', NULL, NULL, NULL, NULL, 't', 'm', '{}', '{}', 'p', 'unreadable', 'e', '', 0, now());
