// What is read and what is refused. The step keys are those against which the library's own
// reader is tested.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { UnusableError, decode, formatStepKey, parseStepKey } from './message.js';

const vectors = new URL('../../internal/stepkey/testdata/stepkeys.json', import.meta.url);
const { valid, invalid } = JSON.parse(readFileSync(vectors, 'utf8'));
assert.ok(valid.length > 0 && invalid.length > 0);

test('a step key is taken apart and put together', () => {
  for (const { text, ...parts } of valid) {
    assert.deepEqual(parseStepKey(text), parts);
    assert.equal(formatStepKey(parts), text);
  }
});

test('a malformed step key is refused', () => {
  for (const text of invalid) {
    assert.throws(() => parseStepKey(text), UnusableError, JSON.stringify(text));
  }
});

// delivery is one of format version 1, with the given headers besides.
function delivery(headers) {
  return {
    properties: { type: 'paid', headers: { 'x-idempotency-key': 'order 42:pay#1', 'x-idempotency-scope': 'tenant', ...headers } },
    content: Buffer.from('{}'),
  };
}

test('version 1 is read, named or not', () => {
  for (const headers of [{}, { 'x-sagamill-format': '1' }]) {
    assert.deepEqual(decode(delivery(headers), 'paid', 'ship').identity, { scope: 'tenant', key: 'order 42', step: 'ship', n: '1' });
  }
});

test('any other version is refused before anything else is looked at', () => {
  const unknown = (error) => error instanceof UnusableError && error.message.startsWith('format-unknown: ');
  for (const format of ['2', '10', '0', '01', '1.1', '-1', ' 1', 2, true, ['1']]) {
    assert.throws(() => decode(delivery({ 'x-sagamill-format': format }), 'paid', 'ship'), unknown);
    assert.throws(() => decode(delivery({ 'x-sagamill-format': format, 'x-idempotency-key': '' }), 'another', 'ship'), unknown);
  }
});
