{{define "fingerprint" -}}
left(encode(sha256(decode(replace(left(regexp_replace(left({{.}}, 1000),
        '"(?:\\.|[^"\\])*(?:"|$)|(?<![[:alnum:]_-])[[:alnum:]_-]*[0-9][[:alnum:]_-]*|(?<![[:alnum:]])[[:alnum:]]+''[[:alnum:]]+|''[^'']*(?:''|$)|`[^`]*(?:`|$)|[0-9a-fA-F]{8,}',
        '?', 'g'), 160), '\', '\\'), 'escape')), 'hex'), 16)
{{- end -}}
-- The fingerprint of an error is a digest of the error without its variable parts: a quoted text, whose closing quote may be
-- missing, and a word that has a digit or an apostrophe, or is hexadecimal. They are masked before the text is cut, so that
-- the length of a variable part does not move the end. The pattern begins only at the beginning of a word: else a long word
-- would take quadratic time. decode(replace(…)) stands for convert_to, which is not immutable; both are
-- equal in a UTF8 database.
--
-- The tables are written anew: 100,000 dead letters take about a second, and consumers wait meanwhile.
{{if .inbox -}}
ALTER TABLE {{.schema}}.parked ADD COLUMN fingerprint text COLLATE "C" GENERATED ALWAYS AS ({{template "fingerprint" "error"}}) STORED;
ANALYZE {{.schema}}.parked (fingerprint);

-- Statistics and groups of dead letters are read from this index alone.
DROP INDEX {{.schema}}.parked_dead;
CREATE INDEX parked_dead ON {{.schema}}.parked (last_at) INCLUDE (id, topic, step, kind, reason, fingerprint, first_at) WHERE state = 'dead';
{{end}}
{{- if .outbox -}}
ALTER TABLE {{.schema}}.outbox_held ADD COLUMN fingerprint text COLLATE "C" GENERATED ALWAYS AS ({{template "fingerprint" "reason"}}) STORED;
ANALYZE {{.schema}}.outbox_held (fingerprint);
{{end}}SELECT;

---- create above / drop below ----

{{if .inbox -}}
DROP INDEX {{.schema}}.parked_dead;
CREATE INDEX parked_dead ON {{.schema}}.parked (last_at) WHERE state = 'dead';
ALTER TABLE {{.schema}}.parked DROP COLUMN fingerprint;
{{end}}
{{- if .outbox -}}
ALTER TABLE {{.schema}}.outbox_held DROP COLUMN fingerprint;
{{end}}SELECT;
