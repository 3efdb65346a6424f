-- The rows of the samples, and copies of them. A copy has a key and an id of its own. Its times are those of the sample,
-- moved. Statements end with a semicolon at the end of a line, and a line that begins with -- table NAME says which table
-- is loaded next: it is emptied, and its indexes are made again afterwards. The statements of a phase run in two sessions.

-- A saga of the last hour is one of twenty-four, and the live ones began in the last 20 hours. Copies of kind running are
-- failing sagas whose command another service has. Those of kind loose are dead letters of steps without an instance, and
-- those of kind step are steps without one. As in a service's tables, rows that were written at one time are in one place.
CREATE TABLE bench.clone AS
SELECT i, kind, key, at, (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5('i' || i), 1, 3) || 'a' || substr(md5('i' || i), 4, 15))::uuid AS id
FROM (SELECT i, k.kind, md5('k' || i)::uuid::text AS key,
	moment.now - interval '5 seconds' - (CASE WHEN k.kind IN ('done', 'rejected') THEN 24 ELSE 20 END) * interval '1 hour' * ((i * 7919::bigint) % 1000003 / 1000003.0) AS at
FROM bench.share k
CROSS JOIN LATERAL generate_series(k.low + 1, k.high) i
CROSS JOIN (SELECT clock_timestamp() AS now) moment) clones
ORDER BY at;

ANALYZE;

-- phase

-- table inbox
INSERT INTO shop.inbox (scope, key, step, n, state, attempts, undo_attempts, digest, undo_digest, created_at, updated_at)
SELECT t.scope, c.key, t.step, t.n, t.state, t.attempts, t.undo_attempts, t.digest, t.undo_digest,
	c.at + (t.created_at - b.started_at), c.at + (t.updated_at - b.started_at)
FROM bench.clone c JOIN bench.sample b ON b.kind = CASE c.kind WHEN 'running' THEN 'failing' WHEN 'loose' THEN 'parked' WHEN 'step' THEN 'done' ELSE c.kind END
JOIN bench.inbox t ON t.key = b.key
WHERE CASE c.kind WHEN 'running' THEN t.state <> 'retrying' WHEN 'loose' THEN t.state = 'dead' WHEN 'step' THEN t.step = 'notify-customer' ELSE true END;

-- table saga
INSERT INTO shop.saga (scope, key, path, id, root, version, name, plan_hash, parent, trace_parent, started_at, state, progress, status, reason, revision,
	tries, updated_at, due_at, ended_at)
SELECT t.scope, c.key, t.path, c.id, c.id, t.version, t.name, t.plan_hash, t.parent, t.trace_parent, c.at, replace(t.state, b.key, c.key), t.progress, t.status,
	t.reason, t.revision, t.tries, c.at + (t.updated_at - b.started_at), NULL, c.at + (t.ended_at - b.started_at)
FROM bench.clone c JOIN bench.sample b ON b.kind = CASE c.kind WHEN 'running' THEN 'failing' ELSE c.kind END
JOIN bench.saga t ON t.key = b.key;

-- table saga_journal
INSERT INTO shop.saga_journal (scope, key, path, at, verb, step, who, why)
SELECT t.scope, c.key, t.path, c.at + (t.at - b.started_at), t.verb, t.step, (ARRAY['ann', 'bob', 'eve'])[1 + c.i % 3], t.why
FROM bench.clone c JOIN bench.sample b ON b.kind = c.kind JOIN bench.saga_journal t ON t.key = b.key
UNION ALL
SELECT 'acme', c.key, '', c.at + interval '1 minute', 'retry', '', (ARRAY['ann', 'bob', 'eve'])[1 + c.i % 3], 'the courier is back' FROM bench.clone c
WHERE c.kind = 'done' AND c.i % 100 = 0;

-- A dead letter has one of twelve errors. A message that is tried again is due tomorrow, so that the load is only that of
-- the benchmark.
-- table parked
INSERT INTO shop.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, stack, attempts, due_at,
	first_at, last_at, digest, in_doubt, round, redriven_at)
SELECT t.state, t.kind, t.scope, c.key, t.step, t.n, t.topic, convert_to(md5(c.key || encode(t.message_id, 'hex'))::uuid::text, 'UTF8'), t.header_names,
	(SELECT array_agg(convert_to(replace(convert_from(h, 'UTF8'), b.key, c.key), 'UTF8') ORDER BY n) FROM unnest(t.header_values) WITH ORDINALITY u (h, n)),
	convert_to(replace(convert_from(t.payload, 'UTF8'), b.key, c.key), 'UTF8'), t.reason,
	CASE WHEN t.state = 'dead' THEN format((ARRAY['payment: status 503 for order %s', 'payment: account of order %s is closed', 'dial tcp 10.0.3.%s:443: connect: connection refused',
		'courier: no answer for order %s within 5s', 'decode body: field amount: "%s" is not a number', 'ERROR: duplicate key value violates unique constraint "effect_pkey" (%s)',
		'stock: item of %s is gone', 'limit of %s is exceeded', 'invoice: template "%s" is missing', 'context deadline exceeded: %s', 'panic: index out of range [%s]',
		'the address of %s is unknown'])[1 + c.i % 12], left(c.key, 8)) ELSE replace(t.error, b.key, c.key) END,
	t.stack, t.attempts, CASE t.state WHEN 'retrying' THEN clock_timestamp() + interval '1 day' ELSE c.at + (t.due_at - b.started_at) END,
	c.at + (t.first_at - b.started_at), c.at + (t.last_at - b.started_at), t.digest, t.in_doubt, t.round, NULL
FROM bench.clone c JOIN bench.sample b ON b.kind = CASE c.kind WHEN 'loose' THEN 'parked' ELSE c.kind END
JOIN bench.parked t ON t.key = b.key ORDER BY c.at;

-- A third of what people have changed is messages.
INSERT INTO shop.operator_journal (at, who, verb, what, ids, why)
SELECT c.at, (ARRAY['ann', 'bob', 'eve'])[1 + c.i % 3], 'dead redrive', '{"topic": "shop.take-payment"}', ARRAY[c.i], 'the account is open again'
FROM bench.clone c WHERE c.kind = 'done' AND c.i % 200 = 0 ORDER BY c.at;

-- table idempotency_key
INSERT INTO shop.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, resp_status, resp_header, resp_body, created_at, completed_at, expires_at)
SELECT 'shop', 'acme', c.key, 3, sha256(c.key::bytea), 'sha256', c.id, 1, c.at + interval '30 seconds', 202, '{"Content-Type":["application/json"]}',
	convert_to('{"order_id":"' || c.key || '","status":"accepted"}', 'UTF8'), c.at, c.at + interval '4 milliseconds', c.at + interval '48 hours'
FROM bench.clone c WHERE c.kind NOT IN ('loose', 'step') LIMIT {keys};

-- Messages that the relay does not publish. The broker has refused the dead ones for one of three reasons, on four topics.
-- table outbox_held
INSERT INTO shop.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload,
	created_at, state, due_at, attempts, reason, refused_at)
SELECT c.i + 1000000000, md5('h' || c.key)::uuid, topic, topic, 'acme', c.key, 'archive', '', 'acme' || chr(31) || c.key, c.id::text, c.id::text, 'application/json', NULL,
	convert_to('{"order_id":"' || c.key || '","note":"' || repeat('x', 200) || '"}', 'UTF8'), c.at, s.state,
	CASE s.state WHEN 'delayed' THEN clock_timestamp() + interval '1 day' WHEN 'refused' THEN clock_timestamp() + interval '1 day' ELSE c.at END,
	CASE s.state WHEN 'delayed' THEN 0 WHEN 'dead' THEN 10 ELSE 3 END,
	CASE s.state WHEN 'delayed' THEN '' ELSE format((ARRAY['unroutable: 312 NO_ROUTE %s', 'nacked: queue order-%s is full', 'message of %s is too large'])[1 + c.i % 3], left(c.key, 8)) END,
	CASE s.state WHEN 'delayed' THEN NULL ELSE c.at + interval '2 minutes' END
FROM (SELECT *, row_number() OVER (ORDER BY i) AS n FROM bench.clone WHERE kind = 'done' LIMIT {held}) c
CROSS JOIN LATERAL (SELECT (ARRAY['archive.orders', 'archive.payments', 'report.daily', 'search.index'])[1 + c.i % 4] AS topic) k
CROSS JOIN LATERAL (SELECT CASE WHEN n <= {dead} THEN 'dead' WHEN n <= {dead} + {refused} THEN 'refused' ELSE 'delayed' END AS state) s;

-- The log has the messages of the last hour, of ten sagas in each transaction.
CREATE TABLE bench.log AS
SELECT dense_rank() OVER (ORDER BY c.at) / 10 AS batch, overlay(md5(c.key || t.message_id) PLACING left(replace(c.id::text, '-', ''), 13) FROM 1)::uuid AS message_id, t.topic, t.type, t.scope, c.key, t.step, t.n, t.ordering_key,
	CASE t.correlation_id WHEN b.id::text THEN c.id::text ELSE t.correlation_id END AS correlation_id,
	CASE t.causation_id WHEN '' THEN '' WHEN b.id::text THEN c.id::text ELSE md5(c.key || t.causation_id)::uuid::text END AS causation_id,
	t.content_type, t.headers, convert_to(replace(convert_from(t.payload, 'UTF8'), b.key, c.key), 'UTF8') AS payload, c.at + (t.created_at - b.started_at) AS created_at
FROM bench.clone c JOIN bench.sample b ON b.kind = CASE c.kind WHEN 'running' THEN 'failing' ELSE c.kind END JOIN bench.outbox t ON t.key = b.key
WHERE c.at > clock_timestamp() - interval '1 hour';

CREATE INDEX ON bench.log (batch);

DO $$
BEGIN
	FOR k IN 0 .. (SELECT max(batch) FROM bench.log) LOOP
		INSERT INTO shop.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, created_at)
		SELECT message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, created_at
		FROM bench.log WHERE batch = k ORDER BY created_at;
		COMMIT;
	END LOOP;
END $$;

-- All of the log is published.
INSERT INTO shop.outbox_cursor_0 (epoch, seq, from_snapshot, to_snapshot, last_id)
SELECT epoch, 1000000000, pg_current_snapshot()::text, NULL, 0 FROM shop.outbox_relay;

-- phase

DROP SCHEMA bench CASCADE;

VACUUM ANALYZE;

CHECKPOINT;
