INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, undo_attempts, digest, undo_digest)
SELECT 's', 'k', 'step', state, state, 1, 1, sha256('a'), sha256('b')
FROM unnest('{open,retrying,dead,done,void,undoing,undo-dead,compensated}'::text[]) state;

INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, stack, attempts, due_at) VALUES
    ('retrying', 'action', 's', 'k', 'step', 'retrying', 't', '\xff', '{h}', '{v}', '\x00', 'handler-error', 'e', 's', 3, now()),
    ('retrying', 'compensation', 's', 'k', 'step', 'undoing', 't', 'm', '{}', '{}', 'p', 'handler-error', 'e', '', 1, now()),
    ('dead', 'action', 's', 'k', 'step', 'dead', 't', 'm', '{}', '{}', 'p', 'terminal', 'e', '', 1, now()),
    ('dead', 'compensation', 's', 'k', 'step', 'undo-dead', 't', 'm', '{}', '{}', 'p', 'terminal', 'e', '', 1, now()),
    ('dead', 'unknown', NULL, NULL, NULL, NULL, 't', 'm', '{}', '{}', 'p', 'unreadable', 'e', '', 0, now());

INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, due_at, digest, in_doubt) VALUES
    ('retrying', 'unknown', 't', 'mended', '{}', '{}', 'p', 'unreadable', now(), sha256('p'), false),
    ('dead', 'unknown', 't', 'in doubt', '{}', '{}', 'p', 'unreadable', now(), NULL, true);
UPDATE {schema}.inbox_horizon SET swept_before = '2020-01-01';
INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, due_at, round)
VALUES ('dead', 'unknown', 't', 'redriven', '{}', '{}', 'p', 'unreadable', now(), 3);
INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, due_at, round, redriven_at)
VALUES ('dead', 'unknown', 't', 'redriven, and when', '{}', '{}', 'p', 'unreadable', now(), 1, '2026-01-02 03:04:05+00');
INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, digest) VALUES ('s', 'k', 'step', 'refused', 'refused', 1, sha256('a'));
