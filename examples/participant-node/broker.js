// The brokers of AMQP_URL: one, or several nodes of a cluster with commas between them.

// addressesOf splits a list at each comma that amqp:// or amqps:// follows, as the library
// does: a password may hold a comma.
export const addressesOf = (list) => list.split(/,(?=[ \t\r\n]*amqps?:\/\/)/i).map((address) => address.trim());

// connectToAny connects to one of list, at random. A node that cannot be reached is followed
// by another one at once. It rejects with the last error when none is left.
export async function connectToAny(list, connect) {
  const left = addressesOf(list);
  for (;;) {
    const [address] = left.splice(Math.floor(Math.random() * left.length), 1);
    try {
      return await connect(address);
    } catch (error) {
      if (left.length === 0) throw error;
    }
  }
}
