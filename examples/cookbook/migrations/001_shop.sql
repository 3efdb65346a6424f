-- Fan-in: which parts of an order have arrived.
CREATE TABLE {{.schema}}.arrival (saga text PRIMARY KEY, parts text[] NOT NULL);

-- Delayed timeout: an order that waits for its payment.
CREATE TABLE {{.schema}}.invoice (saga text PRIMARY KEY, state text NOT NULL CHECK (state IN ('open', 'paid', 'cancelled')));

-- Webhook receiver: what the payment provider has said of each charge.
CREATE TABLE {{.schema}}.charge (reference text PRIMARY KEY, status text NOT NULL, at timestamptz NOT NULL);

-- sqlc: what is in stock.
CREATE TABLE {{.schema}}.stock (item text PRIMARY KEY, free bigint NOT NULL CHECK (free >= 0));

-- Calling a provider: the provider's answers.
CREATE TABLE {{.schema}}.payment (saga text NOT NULL, charge_id text NOT NULL, declined text NOT NULL);

-- Erasure: the only table with personal data, and what refers to it.
CREATE TABLE {{.schema}}.customer (id uuid PRIMARY KEY, name text NOT NULL, address text NOT NULL);
CREATE TABLE {{.schema}}.parcel (
    saga        text PRIMARY KEY,
    customer_id uuid REFERENCES {{.schema}}.customer ON DELETE SET NULL,
    state       text NOT NULL
);

-- A business id as identity: invoices of another system. There is no unique key on purpose: a second one must show.
CREATE TABLE {{.schema}}.booked (number text NOT NULL, amount bigint NOT NULL);

-- Sent goods, for the recipes that end with them. There is no unique key on purpose.
CREATE TABLE {{.schema}}.shipment (saga text NOT NULL);
