// A name server for tests: real DNS over UDP, which answers every question for IPv4 addresses with those that it is
// given, and says that a name does not exist where it has none (RFC 1035).
import { createSocket } from 'node:dgram'
import { Resolver } from 'node:dns/promises'
import { once } from 'node:events'

const HEADER_BYTES = 12
const TYPE_A = 1
const NO_ERROR = 0x8180
const SERVER_FAILURE = 0x8182
const NO_SUCH_NAME = 0x8183

export interface DnsServer extends AsyncDisposable {
  /** What every name resolves to; `broken`: the server fails. */
  answer: string[] | 'broken'
  /** As programs ask it. */
  resolve(host: string): Promise<string[]>
}

export async function dnsServer(answer: string[]): Promise<DnsServer> {
  const socket = createSocket('udp4')
  socket.on('message', (query, { port, address }) => {
    let end = HEADER_BYTES
    while (query[end] !== 0) end += query[end]! + 1
    end += 5
    const question = query.subarray(HEADER_BYTES, end)
    const isA = question.readUInt16BE(question.length - 4) === TYPE_A
    const found = server.answer === 'broken' || !isA ? [] : server.answer
    const flags = server.answer === 'broken' ? SERVER_FAILURE : found.length === 0 ? NO_SUCH_NAME : NO_ERROR
    const header = Buffer.alloc(HEADER_BYTES)
    query.copy(header, 0, 0, 2)
    header.writeUInt16BE(flags, 2)
    header.writeUInt16BE(1, 4)
    header.writeUInt16BE(found.length, 6)
    const records = found.map((text) => {
      const record = Buffer.from([0xc0, HEADER_BYTES, 0, TYPE_A, 0, 1, 0, 0, 0, 1, 0, 4, 0, 0, 0, 0])
      for (const [i, part] of text.split('.').entries()) record[12 + i] = Number(part)
      return record
    })
    socket.send(Buffer.concat([header, question, ...records]), port, address)
  })
  socket.bind(0, '127.0.0.1')
  await once(socket, 'listening')
  const resolver = new Resolver({ timeout: 2_000, tries: 1 })
  resolver.setServers([`127.0.0.1:${socket.address().port}`])
  const server: DnsServer = {
    answer,
    resolve: (host) => resolver.resolve4(host),
    async [Symbol.asyncDispose]() {
      resolver.cancel()
      socket.close()
      await once(socket, 'close')
    },
  }
  return server
}
