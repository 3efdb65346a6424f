INSERT INTO {schema}.operator_journal (who, verb, what, ids, why) VALUES ('me', 'dead redrive', '{"step": "pay"}', '{1,2}', 'mended');
