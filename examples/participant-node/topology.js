// Exchanges and queues, as package rabbitmq declares them: every service declares what it
// uses, and a declaration that differs is refused by the broker.

const SERVICE = 'shipping';

// queueOf names the queue in which this service gets the messages of a topic.
export const queueOf = (namespace, topic) => `${namespace}.${topic}.${SERVICE}`;

export const exchangeOf = (namespace, topic) => `${namespace}.${topic}`;

const quorum = (limit) => ({
  'x-queue-type': 'quorum',
  'x-delivery-limit': limit,
  'x-overflow': 'reject-publish',
  'x-consumer-disconnected-timeout': 1000, // ms, of RabbitMQ 4.3
});

// declare makes sure that the queue of topic is there, and the exchanges that answers go
// to. The dead-letter queue comes first: no message may find it missing.
export async function declare(channel, namespace, topic, answers) {
  const queue = queueOf(namespace, topic);
  await channel.assertQueue(`${queue}.dead`, { durable: true, arguments: quorum(2 ** 30) });
  await channel.assertQueue(queue, {
    durable: true,
    arguments: {
      ...quorum(1000),
      'x-dead-letter-exchange': '',
      'x-dead-letter-routing-key': `${queue}.dead`,
      'x-dead-letter-strategy': 'at-least-once',
    },
  });
  for (const name of [topic, ...answers]) {
    await channel.assertExchange(exchangeOf(namespace, name), 'fanout', { durable: true });
  }
  await channel.bindQueue(queue, exchangeOf(namespace, topic), '');
  return queue;
}
