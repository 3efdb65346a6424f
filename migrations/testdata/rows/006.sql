INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, due_at, digest, in_doubt) VALUES
    ('retrying', 'unknown', 't', 'mended', '{}', '{}', 'p', 'unreadable', now(), sha256('p'), false),
    ('dead', 'unknown', 't', 'in doubt', '{}', '{}', 'p', 'unreadable', now(), NULL, true);
UPDATE {schema}.inbox_horizon SET swept_before = '2020-01-01';
