// The work that a line needs and nothing else, for the bound of bench/memory.ts: one process receives a file, parses its lines, and
// stores them compressed and encrypted, as the API must; the other reads them again, sends each with undici, and stores the
// answers, as a worker must. Both keep lines of a chunk at most, and have the young generation of a service.
//
//   node --max-semi-space-size=16 bench/bare-service.ts receive FILE    # prints its URL; POST / has the lines
//   node --max-semi-space-size=16 bench/bare-service.ts send FILE URL CONCURRENCY    # prints the number of answers
import { createCipheriv, createDecipheriv } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, createReadStream, openSync, writeSync } from 'node:fs'
import { createServer, type IncomingMessage } from 'node:http'
import { DatabaseSync } from 'node:sqlite'
import { zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import { Pool } from 'undici'

const FRAME_BYTES = 64 * 1024
const HEAD_BYTES = 4
const NEWLINE = 0x0a
const KEY = Buffer.alloc(32)
const NONCE = Buffer.alloc(12)

const database = new DatabaseSync(':memory:')
database.exec('CREATE TABLE lines (count)')

/** A file of frames: each compressed, encrypted, and with its length before it. */
class Frames {
  readonly #fd: number
  #pieces: Buffer[] = []
  #bytes = 0

  constructor(path: string) {
    this.#fd = openSync(path, 'w')
  }

  add(line: Buffer): void {
    this.#pieces.push(line, Buffer.of(NEWLINE))
    this.#bytes += line.length + 1
    if (this.#bytes >= FRAME_BYTES) this.#write()
  }

  end(): void {
    this.#write()
    closeSync(this.#fd)
    database.prepare('INSERT INTO lines VALUES (1)').run()
  }

  #write(): void {
    const cipher = createCipheriv('aes-256-gcm', KEY, NONCE)
    const frame = cipher.update(zstdCompressSync(Buffer.concat(this.#pieces)))
    cipher.final()
    const head = Buffer.alloc(HEAD_BYTES)
    head.writeUInt32LE(frame.length)
    writeSync(this.#fd, Buffer.concat([head, frame]))
    this.#pieces = []
    this.#bytes = 0
  }
}

const [role, file = '', base_url = '', concurrency = '64'] = process.argv.slice(2)
if (role === 'receive') await receive()
else await send()

async function receive(): Promise<void> {
  const server = createServer(async (request: IncomingMessage, response) => {
    const store = new Frames(file)
    for await (const line of linesOf(request)) {
      JSON.parse(line.toString())
      store.add(line)
    }
    store.end()
    response.end()
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const address = server.address()
  console.log(`http://127.0.0.1:${typeof address === 'object' && address?.port}`)
}

async function send(): Promise<void> {
  const { origin, pathname } = new URL(base_url)
  const pool = new Pool(origin, { connections: Number(concurrency), pipelining: 1 })
  const answers = new Frames(`${file}.answers`)
  const lines = linesOf(framesOf(file))
  let count = 0
  const loop = async (): Promise<void> => {
    for (let next = await lines.next(); !next.done; next = await lines.next()) {
      const { body } = JSON.parse(next.value.toString())
      const headers = { 'content-type': 'application/json' }
      const path = `${pathname}/chat/completions`
      const response = await pool.request({ path, method: 'POST', headers, body: JSON.stringify(body) })
      answers.add(Buffer.from(await response.body.text()))
      count++
    }
  }
  await Promise.all(Array.from({ length: Number(concurrency) }, loop))
  answers.end()
  console.log(String(count))
  // So that its peak can be read.
  process.stdin.once('end', () => pool.close()).resume()
}

async function* framesOf(path: string): AsyncGenerator<Buffer> {
  let rest: Buffer = Buffer.alloc(0)
  for await (const piece of createReadStream(path, { highWaterMark: FRAME_BYTES })) {
    rest = Buffer.concat([rest, piece])
    while (rest.length >= HEAD_BYTES && rest.length >= HEAD_BYTES + rest.readUInt32LE(0)) {
      const end = HEAD_BYTES + rest.readUInt32LE(0)
      yield zstdDecompressSync(
        createDecipheriv('aes-256-gcm', KEY, NONCE).update(rest.subarray(HEAD_BYTES, end)),
      )
      rest = rest.subarray(end)
    }
  }
}

async function* linesOf(blocks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let rest: Buffer = Buffer.alloc(0)
  for await (const block of blocks) {
    const bytes: Buffer = Buffer.concat([rest, block])
    let at = 0
    for (let end = bytes.indexOf(NEWLINE); end !== -1; end = bytes.indexOf(NEWLINE, at)) {
      yield Buffer.from(bytes.subarray(at, end))
      at = end + 1
    }
    rest = bytes.subarray(at)
  }
}
