{{define "fingerprint" -}}
left(encode(sha256(decode(replace(left(regexp_replace(left({{.}}, 1000),
        '"(?:\\.|[^"\\])*(?:"|$)|(?<![[:alnum:]_-])[[:alnum:]_-]*[0-9][[:alnum:]_-]*|(?<![[:alnum:]])[[:alnum:]]+''[[:alnum:]]+|''[^'']*(?:''|$)|`[^`]*(?:`|$)|[0-9a-fA-F]{8,}',
        '?', 'g'), 160), '\', '\\'), 'escape')), 'hex'), 16)
{{- end -}}
-- The fingerprint of an error is a digest of it without what varies: a quoted text, which may end with the error, and a word
-- that has a digit or an apostrophe, or is hexadecimal. They are masked before the text is cut, so that the length of a
-- variable part does not move the end. A word is tried from its beginning only: from each of its letters, an error of one
-- long word would cost the square of its length. (decode and replace are convert_to, as an immutable expression.)
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
