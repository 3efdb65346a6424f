INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload)
SELECT gen_random_uuid(), 't', 't', 's', 'k' || i, 'step', '', 'o' || i % 2, 'c', '', 'application/json', CASE WHEN i > 1 THEN '{"b": 1, "a":2}'::json END, '\x00ff' FROM generate_series(1, 4) i;

INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
SELECT i, gen_random_uuid(), 't', 't', 's', 'k' || i, 'step', '', 'held', 'c', '', 'text/plain', 'p', state, now(), attempts, reason, CASE WHEN attempts > 0 THEN now() END
FROM (VALUES (1001, 'delayed', 0, ''), (1002, 'refused', 2, 'no route'), (1003, 'dead', 9, 'no route')) v (i, state, attempts, reason);

BEGIN;
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload)
VALUES (gen_random_uuid(), 't', 't', 's', 'k', 'step', '', 'o', 'c', '', '', 'published');
COMMIT;
BEGIN;
UPDATE {schema}.outbox_relay SET epoch = 3, holder = 'h';
INSERT INTO {schema}.outbox_cursor_1 (epoch, seq, from_snapshot, to_snapshot, last_id) SELECT 3, 7, s, s, 0 FROM (SELECT pg_current_snapshot()::text) s (s);
COMMIT;
INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
SELECT i, gen_random_uuid(), 't', 't', 's', 'k' || i, 'step', '', 'held', 'c', '', 'text/plain', 'p', 'waiting', 'infinity', attempts, '', CASE WHEN attempts > 0 THEN now() END
FROM (VALUES (1004, 0), (1005, 2)) v (i, attempts);
