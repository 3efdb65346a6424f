CREATE TABLE {{.schema}}.payment (tenant text NOT NULL, item text NOT NULL, amount bigint NOT NULL);
