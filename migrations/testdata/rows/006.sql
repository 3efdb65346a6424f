INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, due_at, earlier_failures)
VALUES ('dead', 'unknown', 't', 'failed before', '{}', '{}', 'p', 'unreadable', now(), '[{"at": "2026-01-02T03:04:05+00:00", "reason": "failed", "error": "e", "stack": ""}]');
