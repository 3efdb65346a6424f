BEGIN;
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload)
VALUES (gen_random_uuid(), 't', 't', 's', 'k', 'step', '', 'o', 'c', '', '', 'published');
COMMIT;
BEGIN;
UPDATE {schema}.outbox_relay SET log = 'append', epoch = 3, holder = 'h';
INSERT INTO {schema}.outbox_cursor_1 (epoch, seq, from_snapshot, to_snapshot, last_id) SELECT 3, 7, s, s, 0 FROM (SELECT pg_current_snapshot()::text) s (s);
COMMIT;
INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
SELECT i, gen_random_uuid(), 't', 't', 's', 'k' || i, 'step', '', 'held', 'c', '', 'text/plain', 'p', 'waiting', 'infinity', attempts, '', CASE WHEN attempts > 0 THEN now() END
FROM (VALUES (1004, 0), (1005, 2)) v (i, attempts);
