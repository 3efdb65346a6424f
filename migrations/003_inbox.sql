{{if .inbox -}}
-- One row per (scope, key, step, n): the state machine of one step of one saga. It is always moved under its lock.
--   open         claimed, nothing has committed; left behind only by a crash that had its attempt counted
--   retrying     the action failed and its message is parked
--   dead         the action's message is a dead letter
--   done         the action committed
--   refused      the action committed, and says that it has done nothing
--   void         the compensation came first: the action must never run
--   undoing      the compensation failed and its message is parked
--   undo-dead    the compensation's message is a dead letter
--   compensated  the compensation committed
CREATE TABLE {{.schema}}.inbox (
    scope         text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    step          text COLLATE "C" NOT NULL,
    n             text COLLATE "C" NOT NULL,
    state         text        NOT NULL CHECK (state IN ('open', 'retrying', 'dead', 'done', 'refused', 'void', 'undoing', 'undo-dead', 'compensated')),
    attempts      integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0), -- entries of the action's handler
    undo_attempts integer     NOT NULL DEFAULT 0 CHECK (undo_attempts >= 0),
    digest        bytea CHECK (octet_length(digest) = 32),      -- SHA-256 of the action's payload
    undo_digest   bytea CHECK (octet_length(undo_digest) = 32), -- and of the compensation's
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, key, step, n),
    CHECK (state NOT IN ('retrying', 'dead', 'done', 'undoing', 'undo-dead', 'compensated') OR digest IS NOT NULL),
    CHECK (state NOT IN ('void', 'undoing', 'undo-dead', 'compensated') OR undo_digest IS NOT NULL)
) WITH (fillfactor = 80);

-- Messages taken off the broker that did not run to success: retrying ones run again at due_at, dead ones wait for a
-- person. The identity is null where the message had none that could be read.
CREATE TABLE {{.schema}}.parked (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state         text        NOT NULL CHECK (state IN ('retrying', 'dead')),
    kind          text        NOT NULL CHECK (kind IN ('action', 'compensation', 'unknown')),
    scope         text COLLATE "C",
    key           text COLLATE "C",
    step          text COLLATE "C",
    n             text COLLATE "C",
    topic         text        NOT NULL,
    message_id    bytea       NOT NULL, -- as it came: any bytes
    header_names  bytea[]     NOT NULL,
    header_values bytea[]     NOT NULL,
    payload       bytea       NOT NULL,
    reason        text        NOT NULL,
    error         text        NOT NULL DEFAULT '',
    stack         text        NOT NULL DEFAULT '',
    attempts      integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    due_at        timestamptz NOT NULL,
    first_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    digest        bytea CHECK (octet_length(digest) = 32),         -- of the payload as it first came, also after an edit; null: of payload
    in_doubt      boolean     NOT NULL DEFAULT false,              -- a call of an Effect may have had its effect
    not_done      boolean     NOT NULL DEFAULT false,              -- the action was entered, and is known to have had no effect
    round         integer     NOT NULL DEFAULT 0 CHECK (round >= 0), -- how often the message was redriven: attempts begin anew then
    redriven_at   timestamptz,                                     -- when it was redriven last
    CHECK (cardinality(header_names) = cardinality(header_values)),
    CHECK (state = 'dead' OR (key IS NULL) = (kind = 'unknown')),
    CHECK ((key IS NULL) = (scope IS NULL) AND (key IS NULL) = (step IS NULL) AND (key IS NULL) = (n IS NULL))
);

-- At most one parked copy of an action, and one of a compensation, is ever going to run again.
CREATE UNIQUE INDEX parked_retrying ON {{.schema}}.parked (scope, key, step, n, kind) WHERE state = 'retrying';
CREATE INDEX parked_due_at ON {{.schema}}.parked (due_at) WHERE state = 'retrying';
CREATE INDEX parked_dead ON {{.schema}}.parked (last_at) WHERE state = 'dead';
CREATE INDEX parked_key ON {{.schema}}.parked (scope, key); -- of a saga

-- Rows of inbox that were moved last before swept_before may be gone. So a message that is older, and has no row, may
-- have run already. One row, always; swept_before only rises, and before any row is removed.
CREATE TABLE {{.schema}}.inbox_horizon (
    one          boolean     PRIMARY KEY DEFAULT true CHECK (one),
    swept_before timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO {{.schema}}.inbox_horizon DEFAULT VALUES;
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .inbox -}}
DROP TABLE {{.schema}}.inbox_horizon;
DROP TABLE {{.schema}}.parked;
DROP TABLE {{.schema}}.inbox;
{{- else}}SELECT;{{end}}
