{{if .outbox -}}
-- Messages that committed with a business transaction and wait to be published, in the order of id.
-- Per ordering key that is the order of commit, because the writers of a key serialise before they insert.
CREATE TABLE {{.schema}}.outbox (
    id             bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    message_id     uuid        NOT NULL,
    topic          text        NOT NULL,
    type           text        NOT NULL,
    scope          text        NOT NULL,
    key            text        NOT NULL,
    step           text        NOT NULL,
    n              text        NOT NULL,
    ordering_key   text        NOT NULL,
    correlation_id text        NOT NULL,
    causation_id   text        NOT NULL,
    content_type   text        NOT NULL,
    headers        json, -- json, not jsonb: it is only ever read whole
    payload        bytea       NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Messages that the relay does not publish now: delayed ones wait until due_at, refused ones back off until due_at,
-- dead ones have used up their attempts and wait for a person. While a refused message backs off, later ones of its
-- ordering key wait behind it.
CREATE TABLE {{.schema}}.outbox_held (
    LIKE {{.schema}}.outbox INCLUDING DEFAULTS,
    state      text        NOT NULL CHECK (state IN ('delayed', 'refused', 'dead')),
    due_at     timestamptz NOT NULL,
    attempts   integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    reason     text        NOT NULL DEFAULT '',
    refused_at timestamptz,
    PRIMARY KEY (id),
    CHECK ((state = 'delayed') = (attempts = 0)),
    CHECK ((attempts > 0) = (refused_at IS NOT NULL))
);

CREATE INDEX outbox_held_due_at ON {{.schema}}.outbox_held (due_at) WHERE state <> 'dead';
CREATE INDEX outbox_held_ordering_key ON {{.schema}}.outbox_held (ordering_key) WHERE state = 'refused';
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .outbox -}}
DROP TABLE {{.schema}}.outbox_held;
DROP TABLE {{.schema}}.outbox;
{{- else}}SELECT;{{end}}
