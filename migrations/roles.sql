-- The roles of the processes that use schema {schema}, each with no more rights than it needs. Nobody logs in as one of
-- them: a process has a login role of its own, which is a member of those whose work it does.
--
--   {prefix}_owner     owns the schema and what is in it: who migrates
--   {prefix}_entry     takes requests: idempotency keys and their sweeper, messages, starts of sagas
--   {prefix}_relay     publishes the outbox
--   {prefix}_consumer  runs steps and orchestrators, and the inbox's sweeper
--   {prefix}_operator  decides about dead letters, refused messages, sagas and requests whose outcome is unknown, and replays
--   {prefix}_reader    sees where a saga is, and everything else but idempotency keys and stored HTTP responses: of
--                      those it sees how many are in progress; changes nothing
--
-- For a process that consumes and relays, once this has been run:
--
--   CREATE ROLE {prefix}_worker_1 LOGIN PASSWORD '...';
--   GRANT {prefix}_consumer, {prefix}_relay TO {prefix}_worker_1;
--   ALTER ROLE {prefix}_worker_1 SET search_path = pg_catalog;  -- the statements on these tables all name the schema
--
-- Who migrates acts as the owner, so that what a migration makes is the owner's. Nobody else may read that until this
-- script, as the newer binary prints it, has been run again:
--
--   CREATE ROLE {prefix}_deploy LOGIN PASSWORD '...';
--   GRANT {prefix}_owner TO {prefix}_deploy;
--   ALTER ROLE {prefix}_deploy SET search_path = pg_catalog;
--   ALTER ROLE {prefix}_deploy SET role = '{prefix}_owner';
--
-- A service's own tables in the schema become the owner's too. The rights of its handlers on them are the service's to
-- give: GRANT INSERT ON {schema}.orders TO {prefix}_consumer; those of others than the owner stay as they are.
--
-- The tables must be there: sagamill migrate up, or print. The script may be run any number of times, the first time by
-- a superuser, or by the owner of the schema and the tables if it has CREATEROLE and CREATE on the database (it becomes
-- a member of {prefix}_owner); later by the owner. It waits for each table for five seconds at most, since others wait
-- behind it, and changes nothing if that is too short.

BEGIN;
SET LOCAL search_path = pg_catalog;
SET LOCAL lock_timeout = '5s';
SELECT pg_advisory_xact_lock(7265390517843162); -- one after the other; a migration holds it only while it creates the schema

DO $$
DECLARE
    applied integer;
BEGIN
    IF to_regclass('{schema}.schema_version') IS NOT NULL THEN
        SELECT version INTO applied FROM {schema}.schema_version;
    END IF;
    IF applied IS NULL OR applied < {version} THEN
        RAISE EXCEPTION 'schema {schema} has had % of {version} migrations: run sagamill migrate up first', coalesce(applied, 0);
    END IF;
    IF EXISTS (SELECT FROM {schema}.schema_version v WHERE coalesce(to_jsonb(v) ->> 'parts', '') <> '{parts}') THEN
        RAISE EXCEPTION 'schema {schema} has other parts than this script: sagamill migrate version says which, give them to sagamill migrate roles -only';
    END IF;
END $$;

-- A role of one of these names that may do more is somebody else's. What it is a member of it could do as well; and who
-- is a member of it before the schema is the owner's would get rights that nobody has given. Not who runs this: it has
-- them all, and since PostgreSQL 16 it is a member of each role that it has made.
DO $$
DECLARE
    name text;
    other text;
BEGIN
    FOREACH name IN ARRAY ARRAY['{prefix}_owner', '{prefix}_entry', '{prefix}_relay', '{prefix}_consumer', '{prefix}_operator', '{prefix}_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            IF name = '{prefix}_owner' AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
                GRANT {prefix}_owner TO CURRENT_USER; -- or its tables could not be given away
            END IF;
        ELSIF EXISTS (SELECT FROM pg_roles WHERE rolname = name
            AND (rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)) THEN
            RAISE EXCEPTION 'role % exists, and may log in or do more than a role of sagamill: choose another prefix', name;
        END IF;

        SELECT roleid::regrole INTO other FROM pg_auth_members WHERE member = name::regrole LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'role % is a member of %: revoke that, or choose another prefix', name, other;
        END IF;

        SELECT member::regrole INTO other FROM pg_auth_members
        WHERE roleid = name::regrole AND member <> (SELECT oid FROM pg_roles WHERE rolname = current_user)
            AND NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{schema}' AND nspowner = '{prefix}_owner'::regrole)
        LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'role % has a member already, %, which would get its rights: revoke that, or choose another prefix', name, other;
        END IF;
    END LOOP;
END $$;

-- Tables, partitions, views and sequences; a sequence that belongs to a column goes with its table.
DO $$
DECLARE
    relation regclass;
BEGIN
    IF (SELECT nspowner FROM pg_namespace WHERE nspname = '{schema}') <> '{prefix}_owner'::regrole THEN
        ALTER SCHEMA {schema} OWNER TO {prefix}_owner;
    END IF;
    FOR relation IN
        SELECT c.oid FROM pg_class c
        WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relowner <> '{prefix}_owner'::regrole
            AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                AND c.relkind = 'S' AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i'))
        ORDER BY c.relname
    LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO {prefix}_owner', relation);
    END LOOP;
END $$;
{{if .outbox -}}
ALTER FUNCTION {schema}.outbox_forget_summary() OWNER TO {prefix}_owner; -- it acts as its owner
REVOKE ALL ON FUNCTION {schema}.outbox_forget_summary() FROM PUBLIC, {roles};
{{end}}
-- What the owner makes is nobody else's. A function would be everybody's otherwise; the rest undoes what somebody has
-- set, but for defaults without a schema.
ALTER DEFAULT PRIVILEGES FOR ROLE {prefix}_owner REVOKE ALL ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE {prefix}_owner IN SCHEMA {schema} REVOKE ALL ON TABLES FROM PUBLIC, {roles};
ALTER DEFAULT PRIVILEGES FOR ROLE {prefix}_owner IN SCHEMA {schema} REVOKE ALL ON SEQUENCES FROM PUBLIC, {roles};

-- From here on it is as if nothing had been granted.
REVOKE ALL ON SCHEMA {schema} FROM PUBLIC, {roles};
REVOKE ALL ON {schema}.schema_version FROM PUBLIC, {roles};
{{if .idempotency -}}
REVOKE ALL ON {schema}.idempotency_key FROM PUBLIC, {roles};
{{end}}
{{- if .outbox -}}
REVOKE ALL ON
    {schema}.outbox, {schema}.outbox_0, {schema}.outbox_1, {schema}.outbox_2, {schema}.outbox_other,
    {schema}.outbox_held, {schema}.outbox_relay, {schema}.outbox_tenure, {schema}.outbox_cursor_0, {schema}.outbox_cursor_1
    FROM PUBLIC, {roles};
REVOKE ALL ON SEQUENCE {schema}.outbox_leaf, {schema}.outbox_id_seq FROM PUBLIC, {roles};
{{end}}
{{- if .inbox -}}
REVOKE ALL ON {schema}.inbox, {schema}.inbox_horizon, {schema}.parked FROM PUBLIC, {roles};
REVOKE ALL ON SEQUENCE {schema}.parked_id_seq FROM PUBLIC, {roles};
{{end}}
{{- if .saga -}}
REVOKE ALL ON {schema}.saga, {schema}.saga_definition, {schema}.saga_journal FROM PUBLIC, {roles};
REVOKE ALL ON SEQUENCE {schema}.saga_journal_id_seq FROM PUBLIC, {roles};
{{end}}
{{- if .journal -}}
REVOKE ALL ON {schema}.operator_journal FROM PUBLIC, {roles};
REVOKE ALL ON SEQUENCE {schema}.operator_journal_id_seq FROM PUBLIC, {roles};
{{end -}}
GRANT USAGE ON SCHEMA {schema} TO {roles};

{{if .idempotency -}}
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.idempotency_key TO {prefix}_entry;

{{end}}
{{- if .outbox -}}
-- Messages go into outbox, delayed ones into outbox_held.
GRANT INSERT ON {schema}.outbox, {schema}.outbox_held TO {prefix}_entry, {prefix}_consumer;
GRANT USAGE ON SEQUENCE {schema}.outbox_leaf, {schema}.outbox_id_seq TO {prefix}_entry, {prefix}_consumer;

GRANT INSERT, UPDATE ON {schema}.outbox TO {prefix}_relay; -- delayed messages that are due, and a log from another cluster
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.outbox_held TO {prefix}_relay;
GRANT SELECT, TRUNCATE ON {schema}.outbox_0, {schema}.outbox_1, {schema}.outbox_2, {schema}.outbox_other TO {prefix}_relay;
GRANT SELECT, UPDATE ON {schema}.outbox_relay TO {prefix}_relay;
GRANT SELECT, INSERT, DELETE ON {schema}.outbox_tenure TO {prefix}_relay;
GRANT SELECT, INSERT, TRUNCATE ON {schema}.outbox_cursor_0, {schema}.outbox_cursor_1 TO {prefix}_relay;
GRANT USAGE ON SEQUENCE {schema}.outbox_leaf TO {prefix}_relay;
GRANT SELECT, UPDATE ON SEQUENCE {schema}.outbox_id_seq TO {prefix}_relay; -- which is raised if a restore has left it behind its rows

{{end}}
{{- if .inbox -}}
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.inbox, {schema}.parked TO {prefix}_consumer;
GRANT SELECT, UPDATE (swept_before) ON {schema}.inbox_horizon TO {prefix}_consumer;

{{end}}
{{- if .saga -}}
-- A saga is begun, and moved on where its first step is Local or Nested; a key that was used before is answered with its instance.
GRANT SELECT, INSERT, UPDATE (status, reason, progress, state, revision, tries, updated_at, due_at, ended_at) ON {schema}.saga TO {prefix}_entry;
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.saga TO {prefix}_consumer;
GRANT SELECT, INSERT, UPDATE ON {schema}.saga_definition TO {prefix}_consumer;
GRANT SELECT (scope, key, path), DELETE ON {schema}.saga_journal TO {prefix}_consumer; -- with the instances that are over

{{end -}}
-- Of the columns here each may be changed, and no other: a person does not make a message of the outbox or the state of
-- a saga another one. (The row of outbox_relay is locked, for which a right to change it is needed; one can only be true.)
{{if .idempotency -}}
-- A request whose outcome is unknown is answered, or may run again. Nobody sees the request and the stored response.
GRANT SELECT (namespace, scope, key, state, attempt, token, created_at, lease_until, expires_at),
    UPDATE (state, token, resp_status, resp_header, resp_body, enc_key_id, completed_at, lease_until, expires_at)
    ON {schema}.idempotency_key TO {prefix}_operator;
{{end}}
{{- if .inbox -}}
GRANT SELECT, UPDATE, DELETE ON {schema}.parked TO {prefix}_operator;
GRANT SELECT, INSERT, UPDATE (state, updated_at) ON {schema}.inbox TO {prefix}_operator;
GRANT SELECT ON {schema}.inbox_horizon TO {prefix}_operator;
{{end}}
{{- if .outbox -}}
GRANT SELECT, INSERT ON {schema}.outbox TO {prefix}_operator; -- copies, and what a saga that a decision ends tells the one around it
GRANT USAGE ON SEQUENCE {schema}.outbox_leaf TO {prefix}_operator;
GRANT SELECT, DELETE, UPDATE (state, due_at, attempts, refused_at) ON {schema}.outbox_held TO {prefix}_operator;
GRANT SELECT, UPDATE (one) ON {schema}.outbox_relay TO {prefix}_operator;
{{end}}
{{- if .saga -}}
GRANT SELECT, UPDATE (status, reason, progress, revision, tries, updated_at, due_at, ended_at) ON {schema}.saga TO {prefix}_operator;
GRANT SELECT ON {schema}.saga_definition TO {prefix}_operator;
GRANT SELECT, INSERT ON {schema}.saga_journal TO {prefix}_operator;
{{end}}
{{- if .journal -}}
-- A row is written with what it tells of, and stays: its time and its database user are the server's.
GRANT SELECT, INSERT (who, verb, what, ids, why) ON {schema}.operator_journal TO {prefix}_operator;
{{end}}
-- The status of the schema: its version, and how many keys are in progress, without the keys.
GRANT SELECT ON {schema}.schema_version TO {prefix}_reader;
{{if .idempotency -}}
GRANT SELECT (state, lease_until, expires_at) ON {schema}.idempotency_key TO {prefix}_reader;
{{end}}
{{- if .outbox -}}
GRANT SELECT ON
    {schema}.outbox, {schema}.outbox_0, {schema}.outbox_1, {schema}.outbox_2, {schema}.outbox_other,
    {schema}.outbox_held, {schema}.outbox_relay, {schema}.outbox_cursor_0, {schema}.outbox_cursor_1
    TO {prefix}_reader;
GRANT SELECT ON SEQUENCE {schema}.outbox_id_seq TO {prefix}_reader;
{{end}}
{{- if .inbox -}}
GRANT SELECT ON {schema}.inbox, {schema}.inbox_horizon, {schema}.parked TO {prefix}_reader;
{{end}}
{{- if .saga -}}
GRANT SELECT ON {schema}.saga, {schema}.saga_definition, {schema}.saga_journal TO {prefix}_reader;
{{end}}
{{- if .journal -}}
GRANT SELECT ON {schema}.operator_journal TO {prefix}_reader;
{{end -}}
COMMIT;
