{{if .outbox -}}
-- Finds messages by a key, or by an id of theirs, without a scan of the log. Each range of 96 pages is summarized once, by
-- autovacuum, after it is full. Until a range is summarized, its rows write no more WAL, and a search reads all of them.
-- With smaller ranges, a busy outbox would ask for more summaries than autovacuum notes (256 a minute). With larger ones,
-- or fewer false positives, a summary would not fit on a page of the index.
CREATE INDEX outbox_search ON {{.schema}}.outbox USING brin (
    key            text_bloom_ops (n_distinct_per_range = 2000, false_positive_rate = 0.05),
    message_id     uuid_bloom_ops (n_distinct_per_range = 2000, false_positive_rate = 0.05),
    correlation_id text_bloom_ops (n_distinct_per_range = 2000, false_positive_rate = 0.05),
    causation_id   text_bloom_ops (n_distinct_per_range = 2000, false_positive_rate = 0.05)
) WITH (pages_per_range = 96, autosummarize = on);

-- An index on an empty table has a summary of the first range, and each row of that range would change it: 5 kB of WAL. So
-- a trigger removes this summary after each TRUNCATE. Only the owner of the index may do so, and the relay is not the owner.
-- If tables and function have different owners, the summary stays: rows then cost more, and nothing fails.
CREATE FUNCTION {{.schema}}.outbox_forget_summary() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM brin_desummarize_range(i.indexrelid, 0)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
    WHERE i.indrelid = TG_RELID AND a.amname = 'brin';
    RETURN NULL;
EXCEPTION WHEN insufficient_privilege THEN
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION {{.schema}}.outbox_forget_summary() FROM PUBLIC;

CREATE TRIGGER outbox_forget_summary AFTER TRUNCATE ON {{.schema}}.outbox_0 EXECUTE FUNCTION {{.schema}}.outbox_forget_summary();
CREATE TRIGGER outbox_forget_summary AFTER TRUNCATE ON {{.schema}}.outbox_1 EXECUTE FUNCTION {{.schema}}.outbox_forget_summary();
CREATE TRIGGER outbox_forget_summary AFTER TRUNCATE ON {{.schema}}.outbox_2 EXECUTE FUNCTION {{.schema}}.outbox_forget_summary();
CREATE TRIGGER outbox_forget_summary AFTER TRUNCATE ON {{.schema}}.outbox_other EXECUTE FUNCTION {{.schema}}.outbox_forget_summary();

-- Building the index has summarized the last range of each leaf too, although it is not full.
SELECT brin_desummarize_range(i.indexrelid, greatest(pg_relation_size(i.indrelid) / current_setting('block_size')::bigint - 1, 0))
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
WHERE a.amname = 'brin' AND i.indrelid IN ('{{.schema}}.outbox_0'::regclass, '{{.schema}}.outbox_1'::regclass,
    '{{.schema}}.outbox_2'::regclass, '{{.schema}}.outbox_other'::regclass);
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .outbox -}}
DROP TRIGGER outbox_forget_summary ON {{.schema}}.outbox_0;
DROP TRIGGER outbox_forget_summary ON {{.schema}}.outbox_1;
DROP TRIGGER outbox_forget_summary ON {{.schema}}.outbox_2;
DROP TRIGGER outbox_forget_summary ON {{.schema}}.outbox_other;
DROP FUNCTION {{.schema}}.outbox_forget_summary();
DROP INDEX {{.schema}}.outbox_search;
{{- else}}SELECT;{{end}}
