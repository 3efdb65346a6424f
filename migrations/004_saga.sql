{{if .saga -}}
-- One row per instance of an orchestrated saga, always moved under its lock.
--   path      where it is nested: the n of its step in the saga around it; '' for the outermost
--   progress  JSON of the machine: which step is where. Its times are milliseconds since started_at.
--   state     JSON of the author's own
--   status    what people look for; progress says it in detail
--   tries     how often the timer has begun and not come to an end
-- What changes with each reply stands at the end: of a row that is updated in its page, the log has what differs.
CREATE TABLE {{.schema}}.saga (
    scope        text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    path         text COLLATE "C" NOT NULL DEFAULT '',
    id           uuid        NOT NULL, -- the correlation id of its messages
    root         uuid        NOT NULL, -- that of the outermost
    version      integer     NOT NULL,
    name         text COLLATE "C" NOT NULL,
    plan_hash    text        NOT NULL, -- the beginning of that of its plan
    parent       text COLLATE "C", -- name of the saga around it
    trace_parent text        NOT NULL DEFAULT '',
    trace_state  text        NOT NULL DEFAULT '',
    started_at   timestamptz NOT NULL,
    state        text        NOT NULL,
    progress     text        NOT NULL,
    status       text        NOT NULL, -- running, compensating, paused, stuck, completed or compensated
    reason       text        NOT NULL DEFAULT '',
    revision     integer     NOT NULL DEFAULT 0,
    tries        integer     NOT NULL DEFAULT 0,
    updated_at   timestamptz NOT NULL,
    due_at       timestamptz,
    ended_at     timestamptz,
    PRIMARY KEY (scope, key, path),
    -- One, since PostgreSQL reads each anew for every statement, which takes it some 4 µs.
    CHECK ((ended_at IS NOT NULL) = (status IN ('completed', 'compensated')) AND (ended_at IS NULL OR due_at IS NULL))
) WITH (fillfactor = 60); -- a row is updated in place with each reply, beside its former self

CREATE INDEX saga_due_at ON {{.schema}}.saga (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX saga_live ON {{.schema}}.saga (name, version) WHERE ended_at IS NULL;
CREATE INDEX saga_ended_at ON {{.schema}}.saga (ended_at) WHERE ended_at IS NOT NULL;

-- The plans of the definitions that orchestrators have registered, so that an operator's tools know them.
CREATE TABLE {{.schema}}.saga_definition (
    name          text COLLATE "C" NOT NULL,
    version       integer     NOT NULL,
    hash          text        NOT NULL,
    plan          text        NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, version)
);

-- What people have decided about instances.
CREATE TABLE {{.schema}}.saga_journal (
    id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope text COLLATE "C" NOT NULL,
    key   text COLLATE "C" NOT NULL,
    path  text COLLATE "C" NOT NULL,
    at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    verb  text        NOT NULL,
    step  text        NOT NULL DEFAULT '',
    who   text        NOT NULL,
    why   text        NOT NULL
);
CREATE INDEX saga_journal_key ON {{.schema}}.saga_journal (scope, key, path);
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .saga -}}
DROP TABLE {{.schema}}.saga_journal;
DROP TABLE {{.schema}}.saga_definition;
DROP TABLE {{.schema}}.saga;
{{- else}}SELECT;{{end}}
