// Which brokers are connected to.

import assert from 'node:assert/strict';
import test from 'node:test';
import { addressesOf, connectToAny } from './broker.js';

test('a list is split where an address follows a comma', () => {
  for (const [list, want] of [
    ['amqp://u:p@a/vh', ['amqp://u:p@a/vh']],
    [' amqp://u:p@a:5672 ,\tAMQPS://u:p@b/vh\n', ['amqp://u:p@a:5672', 'AMQPS://u:p@b/vh']],
    ['amqp://u:p,amqp@a/vh,amqp://u:,p@b/vh', ['amqp://u:p,amqp@a/vh', 'amqp://u:,p@b/vh']],
  ]) {
    assert.deepEqual(addressesOf(list), want);
  }
});

test('an address that is away is followed by the next, once each', async () => {
  const tried = new Set();
  const connect = async (address) => {
    assert.ok(!tried.has(address));
    tried.add(address);
    if (address !== 'amqp://b') throw new Error(`${address} is away`);
    return address;
  };
  assert.equal(await connectToAny('amqp://a,amqp://b,amqp://c', connect), 'amqp://b');
  tried.clear();
  await assert.rejects(connectToAny('amqp://a,amqp://c', connect), /is away/);
  assert.equal(tried.size, 2);
});
