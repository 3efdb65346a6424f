// The upstream: it charges cards, and knows nothing of the gateway. A request with a key that it has seen gets the
// first answer again. Run it with: node upstream.mjs [port]
import http from 'node:http'

const charges = new Map() // by Idempotency-Key
let requests = 0

async function charge(request, response) {
  const key = request.headers['idempotency-key']
  if (!key) return answer(response, 400, {}, { error: 'Idempotency-Key is missing' })
  let text = ''
  for await (const chunk of request) text += chunk
  requests++
  const { amount, card } = JSON.parse(text)
  const seen = charges.has(key)
  if (!seen) charges.set(key, { id: `ch-${charges.size + 1}`, amount, tenant: request.headers['x-tenant'] })
  if (card === 'slow' && !seen) return // the card is charged, and the first request never gets an answer
  const made = charges.get(key)
  answer(response, 201, headersOf(made), made, card === 'cut' && !seen)
}

const headersOf = made => ({
  Location: `/charges/${made.id}`, 'X-Charge-Id': made.id, 'X-RateLimit-Remaining': '99',
  'Set-Cookie': 'session=of-the-gateway',
})

function answer(response, status, headers, body, cut = false) {
  const text = JSON.stringify(body)
  const own = { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(text) }
  response.writeHead(status, { ...headers, ...own })
  if (!cut) return response.end(text)
  response.write(text.slice(0, 5), () => response.destroy()) // the connection ends in the middle of the answer
}

const server = http.createServer((request, response) => {
  const path = new URL(request.url, 'http://upstream').pathname
  if (request.method === 'POST' && path === '/charges') {
    return charge(request, response).catch(error => answer(response, 400, {}, { error: error.message }))
  }
  if (request.method !== 'GET') return answer(response, 405, {}, {})
  if (path === '/events') { // one event, and then silence
    response.writeHead(200, { 'Content-Type': 'text/event-stream' })
    return response.write('data: hello\n\n')
  }
  if (path === '/ledger') {
    const tenants = [...charges.values()].map(c => c.tenant)
    return answer(response, 200, {}, { requests, keys: [...charges.keys()], tenants })
  }
  const made = charges.get(path.replace('/charges/', ''))
  if (!made) return answer(response, 404, {}, { error: 'no charge has this key' })
  answer(response, 200, headersOf(made), made)
})

server.listen(Number(process.argv[2] ?? 0), '127.0.0.1', () => console.log(`127.0.0.1:${server.address().port}`))
