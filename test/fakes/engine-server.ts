// A model server as a program of its own, to be started as an engine. It asks for its key, and does what the text of a
// line says: "crash" ends it, "hang" is never answered, "together" once there are 40 of them. ENGINE_LOG names a file that
// gets a line for each start and each request. It prints what it is asked. Arguments: port or socket; then how it starts:
// `fail`, `stubborn`, `child`, `late` (it listens once GATE is there). It is healthy once GATE is there.
import { spawn } from 'node:child_process'
import { appendFileSync, existsSync } from 'node:fs'
import { createServer, type ServerResponse } from 'node:http'
import { setTimeout } from 'node:timers/promises'
import { completion, send } from './upstream.ts'

const [place = '', ...ways] = process.argv.slice(2)
const { ENGINE_LOG = '/dev/null', ENGINE_KEY = '', GATE = '' } = process.env
const note = (text: string): void => appendFileSync(ENGINE_LOG, `${text}\n`)

note(`start ${process.pid} gpus=${process.env.CUDA_VISIBLE_DEVICES ?? ''}`)
note(`place ${place}`)
note(`env ${Object.keys(process.env).join(' ')}`)
process.stdout.write('loading the model\n')
if (ways.includes('fail')) {
  process.stderr.write(`no such model; the key is ${ENGINE_KEY}\n`)
  process.exit(1)
}
if (ways.includes('stubborn')) process.on('SIGTERM', () => {})
if (ways.includes('child')) {
  const child = spawn('sleep', ['600'], { detached: true, stdio: 'ignore' })
  note(`child ${child.pid}`)
}

const isLoaded = (): boolean => GATE === '' || existsSync(GATE)

const together: ServerResponse[] = []

const server = createServer((request, response) => {
  if (request.url === '/health') {
    response.writeHead(isLoaded() ? 200 : 503).end()
    return
  }
  if (request.headers.authorization !== `Bearer ${ENGINE_KEY}`) {
    response.writeHead(401).end('{}')
    return
  }
  if (request.url === '/metrics') {
    response.end(`vllm:num_requests_running ${together.length}\nvllm:num_requests_waiting 0\n`)
    return
  }
  const pieces: Buffer[] = []
  request.on('data', (piece: Buffer) => pieces.push(piece))
  request.on('end', () => {
    const text = Buffer.concat(pieces).toString()
    const body: { messages: { content: string }[] } = JSON.parse(text)
    const content = body.messages.at(-1)?.content ?? ''
    note(`request ${text}`)
    process.stdout.write(`asked: ${text}\n`)
    if (content === 'crash' || (content === 'crash-once' && !existsSync(`${ENGINE_LOG}.crashed`))) {
      appendFileSync(`${ENGINE_LOG}.crashed`, '')
      process.kill(process.pid, 'SIGKILL')
    }
    if (content === 'hang') return
    if (content === 'together') {
      together.push(response)
      if (together.length === 40) for (const one of together) send(one, 200, completion(content))
      return
    }
    send(response, 200, completion(content))
  })
})
while (ways.includes('late') && !isLoaded()) await setTimeout(20)
if (/^\d+$/.test(place)) server.listen(Number(place), '127.0.0.1')
else server.listen(place)
