// The step: arrange a shipment, or say that it cannot be done. Inbox row, shipment and
// answer are one transaction.

import { randomUUID } from 'node:crypto';
import { UnusableError } from './message.js';

export const STEP = 'arrange-shipping';
export const LISTENS = 'payment.processed';
export const PUBLISHES = ['shipment.arranged', 'shipment.rejected'];

// arrange does the step once for an identity and returns the answer to publish. A
// duplicate gets the answer that the first one got. A copy that arrives at the same time
// waits in the first INSERT until this transaction ends: then it finds the row, or does
// the step itself because this one has rolled back.
//
// After an error the transaction may have committed all the same. The message must not be
// acked then: it comes again, and finds out.
export async function arrange(pool, message) {
  const order = checkOrder(message.body);
  return inTransaction(pool, async (client) => {
    const answer = decide(order, message.attempt);
    const { scope, key, step, n } = message.identity;
    const claimed = await client.query(
      `INSERT INTO shipping_node.inbox (scope, key, step, n, digest, answer_id, answer_topic, answer_step, answer_body)
       VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (scope, key, step, n) DO NOTHING`,
      [scope, key, step, n, message.digest, answer.id, answer.topic, answer.step, answer.body],
    );
    if (claimed.rowCount === 0) {
      return earlierAnswer(client, message);
    }
    await client.query('INSERT INTO shipping_node.shipment (order_id, state, item, quantity) VALUES ($1, $2, $3, $4)', [
      order.order_id, answer.state, order.item, order.quantity,
    ]);
    return answer;
  });
}

// decide is the business. A rejected shipment has the payment undone: that answer is for
// the step to compensate, and must bear its name.
function decide(order, attempts) {
  const rejected = order.item === 'unshippable';
  const outcome = { order_id: order.order_id, ...(rejected && { reason: 'item cannot be shipped' }), attempts };
  return {
    id: randomUUID(),
    state: rejected ? 'rejected' : 'arranged',
    topic: rejected ? 'shipment.rejected' : 'shipment.arranged',
    step: rejected ? 'process-payment' : 'record-shipment',
    body: JSON.stringify(outcome),
  };
}

async function earlierAnswer(client, message) {
  const { scope, key, step, n } = message.identity;
  const { rows } = await client.query(
    `SELECT digest, answer_id AS id, answer_topic AS topic, answer_step AS step, answer_body AS body
     FROM shipping_node.inbox WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4`,
    [scope, key, step, n],
  );
  const [{ digest, ...answer }] = rows;
  if (!digest.equals(message.digest)) {
    throw new UnusableError('the key was used for another payload');
  }
  return answer;
}

function checkOrder(body) {
  const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
  const integer = Number.isInteger(body?.quantity) && Math.abs(body.quantity) < 2 ** 31;
  // PostgreSQL stores no NUL.
  if (!uuid.test(body?.order_id) || typeof body.item !== 'string' || body.item.includes('\0') || !integer) {
    throw new UnusableError('the body is no order');
  }
  return body;
}

// inTransaction returns what work returns once it has committed.
async function inTransaction(pool, work) {
  const client = await pool.connect();
  let broken;
  try {
    await client.query('BEGIN');
    const result = await work(client);
    const ended = await client.query('COMMIT');
    if (ended.command !== 'COMMIT') {
      throw new Error('the transaction was rolled back'); // which the server says without an error
    }
    return result;
  } catch (error) {
    // The connection is closed rather than rolled back: it may be what is broken.
    broken = error;
    // Data that the tables refuse are refused each time.
    throw /^2[23]/.test(error.code) ? new UnusableError(`PostgreSQL refuses it: ${error.code}`) : error;
  } finally {
    client.release(broken);
  }
}
