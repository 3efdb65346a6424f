INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, resp_status, resp_header, resp_body, enc_key_id, completed_at, expires_at) VALUES
    ('n', 's', 'in progress', 1, 'f', 'a', gen_random_uuid(), 1, now(), NULL, NULL, NULL, NULL, NULL, now()),
    ('n', 's', 'failed', 2, 'f', 'a', gen_random_uuid(), 2, now(), NULL, NULL, NULL, NULL, NULL, now()),
    ('n', 's', 'completed', 3, 'f', 'a', gen_random_uuid(), 1, now(), 200, 'h', '\x00ff', 'k', now(), now()),
    ('n', 's', 'tombstone', 4, 'f', 'a', gen_random_uuid(), 1, now(), 201, 'h', NULL, NULL, now(), now());
