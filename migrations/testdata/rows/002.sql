INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload)
SELECT gen_random_uuid(), 't', 't', 's', 'k' || i, 'step', '', 'o' || i % 2, 'c', '', 'application/json', CASE WHEN i > 1 THEN '{"b": 1, "a":2}'::json END, '\x00ff' FROM generate_series(1, 4) i;

INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
SELECT i, gen_random_uuid(), 't', 't', 's', 'k' || i, 'step', '', 'held', 'c', '', 'text/plain', 'p', state, now(), attempts, reason, CASE WHEN attempts > 0 THEN now() END
FROM (VALUES (1001, 'delayed', 0, ''), (1002, 'refused', 2, 'no route'), (1003, 'dead', 9, 'no route')) v (i, state, attempts, reason);
