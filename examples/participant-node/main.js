// The shipping service of the order saga, for
//
//	order-saga serve -services order,payment,gateway
//
// See README.md.

import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { setTimeout as pause } from 'node:timers/promises';
import pg from 'pg';
import { consume } from './participant.js';

const POOL_SIZE = 8;
const RETRY_BASE = 100; // ms, the ceiling of the first wait after a failure
const RETRY_CAP = 5000;

const log = (text) => console.error(`shipping: ${text}`);

const { DATABASE_URL, AMQP_URL, ORDER_SAGA_NAMESPACE: namespace = 'order-saga' } = process.env;
if (!DATABASE_URL || !AMQP_URL) {
  log('set DATABASE_URL and AMQP_URL');
  process.exit(2);
}

const stopping = new AbortController();
const stopped = once(stopping.signal, 'abort');
for (const name of ['SIGINT', 'SIGTERM']) {
  process.once(name, () => stopping.abort());
}

const pool = new pg.Pool({
  connectionString: DATABASE_URL,
  max: POOL_SIZE,
  connectionTimeoutMillis: 5000,
  query_timeout: 30_000, // a server that does not answer is as good as none
  application_name: 'shipping (node)',
});
pool.on('error', (error) => log(`idle connection: ${error.message}`)); // the pool opens another

// migrate creates the tables: all or none, since statements that are sent together are
// one transaction. The lock lets several processes start at once.
async function migrate() {
  const schema = await readFile(new URL('schema.sql', import.meta.url), 'utf8');
  await pool.query(`SELECT pg_advisory_xact_lock(hashtext('shipping_node')); ${schema}`);
}

// Database and broker may be away at any time: from the start, too.
for (let failures = 0; !stopping.signal.aborted; ) {
  const began = Date.now();
  try {
    await migrate();
    await consume({ amqpURL: AMQP_URL, namespace, pool, log, stopped });
  } catch (error) {
    failures = Date.now() - began > RETRY_CAP ? 0 : failures + 1;
    const wait = Math.random() * Math.min(RETRY_BASE * 2 ** failures, RETRY_CAP); // full jitter
    log(`trying again in ${Math.round(wait)} ms: ${error.message}`);
    await pause(wait, undefined, { signal: stopping.signal }).catch(() => {}); // told to stop
  }
}
await pool.end();
