{{if .outbox -}}
-- Finds the messages of a saga, and a message by its id, without a scan of the log. A row costs its writer nothing: each
-- range of 128 pages is summarized once, by autovacuum, after it is full. Ranges without a summary are read as a whole.
-- With smaller ranges, a busy outbox would ask for more summaries than autovacuum notes (256 a minute).
CREATE INDEX outbox_search ON {{.schema}}.outbox USING brin (
    key        text_bloom_ops (n_distinct_per_range = 2600, false_positive_rate = 0.02),
    message_id uuid_bloom_ops (n_distinct_per_range = 2600, false_positive_rate = 0.02)
) WITH (pages_per_range = 128, autosummarize = on);
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .outbox -}}
DROP INDEX {{.schema}}.outbox_search;
{{- else}}SELECT;{{end}}
