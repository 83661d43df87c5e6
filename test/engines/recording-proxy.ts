// Passes on what arrives at a port to a server that it starts, and writes it to a file: the bytes that the server got.
// Arguments: port, file, command; `{inner}` in the command is the port that the server is to listen on.
import { spawn } from 'node:child_process'
import { appendFileSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { freePort } from '../../src/engines/engine-access.ts'

const [port = '', file = '', program = '', ...args] = process.argv.slice(2)
const inner = await freePort()

appendFileSync(`${file}.pids`, `${process.pid}\n`)
const server = spawn(
  program,
  args.map((word) => word.replace('{inner}', String(inner))),
  { stdio: 'inherit' },
)
server.on('exit', (code) => process.exit(code ?? 1))

createServer((client) => {
  const upstream = connect(inner, '127.0.0.1')
  client.on('data', (piece) => appendFileSync(file, piece))
  client.pipe(upstream)
  upstream.pipe(client)
  client.on('error', () => upstream.destroy())
  upstream.on('error', () => client.destroy())
}).listen(Number(port), '127.0.0.1')
