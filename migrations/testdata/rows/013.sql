INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, resp_status, expires_at) VALUES
    ('n', 's', 'unknown', 5, 'f', 'a', gen_random_uuid(), 1, now(), 504, 'infinity');
