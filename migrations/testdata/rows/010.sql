INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, due_at, round, redriven_at)
VALUES ('dead', 'unknown', 't', 'redriven, and when', '{}', '{}', 'p', 'unreadable', now(), 1, '2026-01-02 03:04:05+00');
