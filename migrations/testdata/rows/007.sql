INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, due_at, round)
VALUES ('dead', 'unknown', 't', 'redriven', '{}', '{}', 'p', 'unreadable', now(), 3);
