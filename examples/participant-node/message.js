// What a message of the saga looks like: which of its properties and headers count, and
// what is refused.

import { createHash } from 'node:crypto';

// An UnusableError reports a message that no attempt can handle. It goes to the
// dead-letter queue; everything else that goes wrong is tried again.
export class UnusableError extends Error {}

// The one version of the message format that this program reads. A message that names
// none is of version 1.
const FORMAT = '1';

// parseStepKey splits <key>:<step>[#<n>]. The key is the client's, 1 to 255 printable ASCII
// characters, and may have spaces and colons itself; neither step nor n has a colon, so the
// last one is the one.
export function parseStepKey(value) {
  const colon = value.lastIndexOf(':');
  const match = /^([a-z0-9][a-z0-9-]{0,62})(?:#([A-Za-z0-9._-]{1,64}|\.[A-Za-z0-9_]{1,24}\.[A-Za-z0-9._-]{1,64}))?$/.exec(value.slice(colon + 1));
  const key = value.slice(0, Math.max(colon, 0));
  if (!match || !/^[\x20-\x7e]{1,255}$/.test(key)) {
    throw new UnusableError('x-idempotency-key is malformed');
  }
  return { key, step: match[1], n: match[2] ?? '' };
}

export function formatStepKey({ key, step, n }) {
  return n === '' ? `${key}:${step}` : `${key}:${step}#${n}`;
}

// decode reads a delivery of the given type, for the step that this service does. The
// identity has the service's own step name: the one in the key is the sender's idea of
// who listens. The version comes first: in another one, nothing else means what it says.
export function decode({ properties, content }, type, step) {
  const { headers = {} } = properties;
  if ((headers['x-sagamill-format'] ?? FORMAT) !== FORMAT) {
    throw new UnusableError('format-unknown: x-sagamill-format is a version that is not known');
  }
  if (properties.type !== type) {
    throw new UnusableError('the type is missing or another');
  }
  for (const name of ['x-idempotency-key', 'x-idempotency-scope']) {
    if (typeof headers[name] !== 'string' || headers[name] === '') {
      throw new UnusableError(`${name} is missing`);
    }
  }
  const { key, n } = parseStepKey(headers['x-idempotency-key']);
  return {
    identity: { scope: headers['x-idempotency-scope'], key, step, n },
    digest: createHash('sha256').update(content).digest(),
    body: parseJSON(content),
    messageId: properties.messageId ?? '',
    correlationId: properties.correlationId ?? properties.messageId ?? '',
    traceHeaders: pick(headers, ['traceparent', 'tracestate']),
    // A quorum queue counts the deliveries that were not acked.
    attempt: 1 + Number(headers['x-delivery-count'] ?? 0),
  };
}

// encode returns what amqplib's publish takes for the answer to a message: the same scope
// and key, another step, and a message-id that is the same each time.
export function encode(message, answer) {
  const { scope, key, n } = message.identity;
  return {
    content: Buffer.from(answer.body),
    options: {
      messageId: answer.id,
      type: answer.topic,
      timestamp: Math.floor(Date.now() / 1000),
      correlationId: message.correlationId,
      contentType: 'application/json',
      persistent: true,
      mandatory: true, // without a queue for it, the broker gives it back
      headers: {
        ...message.traceHeaders,
        'x-idempotency-key': formatStepKey({ key, step: answer.step, n }),
        'x-idempotency-scope': scope,
        'x-causation-id': message.messageId,
      },
    },
  };
}

function parseJSON(content) {
  try {
    return JSON.parse(content.toString());
  } catch {
    throw new UnusableError('the body is no JSON'); // without the parser's message, which quotes it
  }
}

function pick(from, names) {
  return Object.fromEntries(names.filter((name) => typeof from[name] === 'string').map((name) => [name, from[name]]));
}
