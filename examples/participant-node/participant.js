// One connection to the broker: what is delivered is handled, answered and acked, in this
// order.

import amqp from 'amqplib';
import { connectToAny } from './broker.js';
import { UnusableError, decode, encode } from './message.js';
import { LISTENS, PUBLISHES, STEP, arrange } from './shipping.js';
import { declare, exchangeOf } from './topology.js';

const CONNECT_TIMEOUT = 10_000; // ms, for one address
const PREFETCH = 8; // deliveries in hand at once: no more than the pool has connections

// consume handles deliveries until stopped resolves, and then finishes those in hand. It
// rejects as soon as anything fails that a later attempt may mend: the broker gives what
// was not acked to the next consumer, and the caller waits before it comes back. So a
// database that is away does not make messages go round and round.
export async function consume({ amqpURL, namespace, pool, log, stopped }) {
  const options = { timeout: CONNECT_TIMEOUT, clientProperties: { connection_name: `${namespace} shipping (node)` } };
  const connection = await connectToAny(amqpURL, (address) => amqp.connect(address, options));
  const inHand = new Set();
  let fail;
  const failed = new Promise((_, reject) => { fail = reject; });
  failed.catch(() => {}); // it may come when nobody waits any more
  try {
    const channel = await connection.createConfirmChannel();
    for (const emitter of [connection, channel]) {
      emitter.on('error', fail);
      emitter.on('close', () => fail(new Error('the broker is away')));
    }
    const publish = publisher(channel);
    const queue = await declare(channel, namespace, LISTENS, PUBLISHES);
    await channel.prefetch(PREFETCH);
    const { consumerTag } = await channel.consume(queue, (delivery) => {
      if (delivery === null) {
        fail(new Error('the broker has cancelled the consumer')); // its queue was deleted, say
        return;
      }
      const handled = handle({ delivery, channel, publish, pool, namespace, log })
        .catch(fail)
        .finally(() => inHand.delete(handled));
      inHand.add(handled);
    });
    log(`consuming ${queue}`);
    await Promise.race([failed, stopped]);
    await channel.cancel(consumerTag);
    await Promise.all(inHand);
    await channel.close(); // the acks are out then
  } finally {
    await connection.close().catch(() => {}); // it may be closed already
    await Promise.all(inHand);
  }
}

// handle does the step, publishes its answer and acks. Whoever dies before the ack has the
// message delivered again: the step is not done again, and the answer, if it was published
// already, is published again under the same message-id and step key, by which its
// receiver knows it.
async function handle({ delivery, channel, publish, pool, namespace, log }) {
  try {
    const message = decode(delivery, LISTENS, STEP);
    const answer = await arrange(pool, message);
    await publish(exchangeOf(namespace, answer.topic), encode(message, answer));
    channel.ack(delivery);
  } catch (error) {
    if (!(error instanceof UnusableError)) {
      throw error;
    }
    log(`dead letter ${delivery.properties.messageId}: ${error.message}`);
    channel.nack(delivery, false, false); // to the dead-letter queue
  }
}

// publisher returns a function that resolves once the broker has taken a message over and
// has routed it to a queue. An unroutable one is returned before it is confirmed.
function publisher(channel) {
  const waiting = new Set(); // what was published and is not confirmed yet
  channel.on('return', ({ properties }) => {
    for (const message of waiting) {
      message.returned ||= message.id === properties.messageId;
    }
  });
  return (exchange, { content, options }) =>
    new Promise((resolve, reject) => {
      const message = { id: options.messageId, returned: false };
      waiting.add(message);
      channel.publish(exchange, '', content, options, (refused) => {
        waiting.delete(message);
        if (refused || message.returned) {
          reject(refused ?? new Error(`nobody listens to ${exchange}`));
        } else {
          resolve();
        }
      });
    });
}
