CREATE TABLE {{.schema}}.payment (tenant text NOT NULL, key text NOT NULL, item text NOT NULL, amount bigint NOT NULL);
CREATE TABLE {{.schema}}.parcel (tenant text NOT NULL, key text NOT NULL, item text NOT NULL);
