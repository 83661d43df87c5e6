// A model server with no model and no latency, on bare sockets: it must cost so little that what is measured
// is the client. Prints its base URL, and answers every request with the same completion.
import { createServer } from 'node:net'
import { listen } from '../test/support/listen.ts'

const answerBytes = Number(process.argv[2] ?? 200)
const body = JSON.stringify({
  id: 'chatcmpl-bench',
  object: 'chat.completion',
  created: 1_700_000_000,
  model: 'bench',
  choices: [
    { index: 0, message: { role: 'assistant', content: 'x'.repeat(answerBytes) }, finish_reason: 'stop' },
  ],
  usage: { prompt_tokens: 250, completion_tokens: 50, total_tokens: 300 },
})
const answer = Buffer.from(
  `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
)
const END_OF_HEAD = Buffer.from('\r\n\r\n')

let requests = 0

const server = createServer((socket) => {
  socket.setNoDelay(true)
  let pending = Buffer.alloc(0)
  /** Bytes of the current body still to come; -1 before its head is complete. */
  let left = -1
  socket.on('error', () => socket.destroy())
  socket.on('data', (piece: Buffer) => {
    let at = 0
    if (left === -1 && pending.length > 0) {
      piece = Buffer.concat([pending, piece])
      pending = Buffer.alloc(0)
    }
    while (at < piece.length) {
      if (left === -1) {
        const end = piece.indexOf(END_OF_HEAD, at)
        if (end === -1) {
          pending = Buffer.from(piece.subarray(at))
          return
        }
        const head = piece.toString('latin1', at, end)
        left = Number(/content-length: *(\d+)/i.exec(head)?.[1] ?? 0)
        at = end + END_OF_HEAD.length
      }
      const taken = Math.min(left, piece.length - at)
      left -= taken
      at += taken
      if (left > 0) return
      left = -1
      requests++
      socket.write(answer)
    }
  })
})

console.log(`${(await listen(server)).url}/v1`)
process.on('SIGTERM', () => {
  console.error(`upstream answered ${requests}`)
  process.exit(0)
})
