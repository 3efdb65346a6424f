INSERT INTO {schema}.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, due_at, ended_at)
SELECT 's', status, gen_random_uuid(), gen_random_uuid(), 1, 'trip', 'h', now(), '{}', '{}', status, now(), CASE WHEN status = 'running' THEN now() END, CASE WHEN status LIKE 'comp%ed' THEN now() END
FROM unnest('{running,compensating,paused,stuck,completed,compensated}'::text[]) status;
INSERT INTO {schema}.saga_definition (name, version, hash, plan) VALUES ('trip', 1, 'h', '{}');
INSERT INTO {schema}.saga_journal (scope, key, path, verb, who, why) VALUES ('s', 'paused', '', 'pause', 'me', 'because');
