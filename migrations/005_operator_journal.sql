{{if .journal -}}
-- What operators have done to messages: a row for each transaction in which they have done something, written by it.
-- What they have decided about sagas is in saga_journal.
--   who      as they say; db_user is the server's word, at its clock
--   verb     as the command says it
--   what     what has picked the messages; {} if they were named. Of an edit: names of headers, and digests
--   ids      of the messages: of parked, outbox_held or outbox
CREATE TABLE {{.schema}}.operator_journal (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    who     text        NOT NULL CHECK (who <> ''),
    db_user text        NOT NULL DEFAULT session_user,
    verb    text        NOT NULL,
    what    jsonb       NOT NULL,
    ids     bigint[]    NOT NULL CHECK (cardinality(ids) > 0),
    why     text        NOT NULL
);
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .journal -}}
DROP TABLE {{.schema}}.operator_journal;
{{- else}}SELECT;{{end}}
