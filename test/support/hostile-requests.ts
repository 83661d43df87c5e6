// Sends hostile requests to a service over raw sockets and checks each answer: it uses the error envelope, has a
// request ID, shows no stack, and is never a 500. The same seed sends the same requests.
//
//   node test/support/hostile-requests.ts [COUNT] [SEED]     (against a service of its own)
import { connect, type Socket } from 'node:net'
import { type HostileRequest, hostileRequest } from './hostile-request.ts'

export interface Siege {
  url: string
  /** A valid key; some requests carry it. */
  key: string
  /** Objects that exist, to be named in paths and bodies. */
  ids: readonly string[]
  count: number
  seed: number
}

export interface SiegeReport {
  sent: number
  /** Requests that may stay without an answer, because they never ended or made no sense, and did. */
  unanswered: number
  by_status: Record<string, number>
  /** What should not have happened. */
  complaints: string[]
}

const AT_ONCE = 24
const ANSWER_MS_MAX = 15_000
/** How long the sender of half a request waits before it hangs up. */
const HALF_MS = 15
const COMPLAINTS_MAX = 20

export async function besiege({ url, key, ids, count, seed }: Siege): Promise<SiegeReport> {
  const { hostname, port } = new URL(url)
  const report: SiegeReport = { sent: 0, unanswered: 0, by_status: {}, complaints: [] }
  let next = 0
  const attacker = async (): Promise<void> => {
    while (next < count && report.complaints.length < COMPLAINTS_MAX) {
      const request = hostileRequest(seed + next++, key, ids)
      const answer = await exchange({ host: hostname, port: Number(port) }, request)
      report.sent++
      const complaint = judge(request, answer)
      if (complaint !== null)
        report.complaints.push(`${complaint}: ${request.bytes.toString('latin1').slice(0, 400)}`)
      const status = answer === null ? null : (/^HTTP\/1\.1 (?!100)(\d{3})/m.exec(answer)?.[1] ?? 'no HTTP')
      if (status === null) report.unanswered++
      else report.by_status[status] = (report.by_status[status] ?? 0) + 1
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, attacker))
  return report
}

/** The answer as it came, in latin1, or null if the connection ended without one. */
async function exchange(at: { host: string; port: number }, request: HostileRequest): Promise<string | null> {
  const socket = connect(at)
  socket.on('error', () => {})
  const answered = readAnswer(socket, request)
  if (request.drip) for (const byte of request.bytes) socket.write(Buffer.of(byte))
  else socket.write(request.bytes)
  if (!request.complete) {
    const hangUp = setTimeout(() => socket.end(), HALF_MS)
    socket.once('close', () => clearTimeout(hangUp))
  }
  const text = await answered
  // A reset leaves no port behind that waits for latecomers.
  socket.resetAndDestroy()
  return text === '' ? null : text
}

async function readAnswer(socket: Socket, request: HostileRequest): Promise<string> {
  let text = ''
  const limit = AbortSignal.timeout(request.complete ? ANSWER_MS_MAX : HALF_MS * 20)
  const over = new Promise<void>((resolve) => {
    socket.on('data', (piece) => {
      text += piece.toString('latin1')
      if (isWhole(text, request.bodiless)) resolve()
    })
    socket.on('close', () => resolve())
    limit.addEventListener('abort', () => resolve())
  })
  await over
  return text
}

function isWhole(text: string, bodiless: boolean): boolean {
  const end = text.indexOf('\r\n\r\n')
  if (end === -1) return false
  const head = text.slice(0, end)
  if (/^HTTP\/1\.1 100/.test(head)) return isWhole(text.slice(end + 4), bodiless)
  if (bodiless) return true
  const length = /^content-length: (\d+)$/im.exec(head)?.[1]
  if (length !== undefined) return text.length >= end + 4 + Number(length)
  return /^transfer-encoding: chunked$/im.test(head) && text.endsWith('\r\n0\r\n\r\n')
}

/** What is wrong with the answer; null if nothing is. */
function judge(request: HostileRequest, answer: string | null): string | null {
  if (answer === null) return request.complete ? 'no answer' : null
  const text = answer.startsWith('HTTP/1.1 100') ? answer.slice(answer.indexOf('\r\n\r\n') + 4) : answer
  if (text === '') return request.complete ? 'no answer after 100 Continue' : null
  const end = text.indexOf('\r\n\r\n')
  const head = text.slice(0, end)
  const body = text.slice(end + 4)
  const status = Number(/^HTTP\/1\.1 (\d{3})/.exec(head)?.[1])
  if (!(status >= 200)) return `not HTTP: ${text.slice(0, 100)}`
  if (status >= 500) return `a ${status}`
  if (!/^x-service-request-id: req_\w+\r?$/im.test(head)) return `a ${status} without a request ID`
  if (/node_modules|\.ts:\d+|<html/i.test(body) && status >= 400) return `a ${status} that says too much`
  if (status < 400 || request.bodiless) return null
  if (!/^content-type: application\/json/im.test(head)) return `a ${status} that is no JSON`
  try {
    const { error }: { error?: Record<string, unknown> } = JSON.parse(Buffer.from(body, 'latin1').toString())
    const whole = [error?.type, error?.code, error?.message].every((part) => typeof part === 'string' && part)
    return whole ? null : `a ${status} outside the envelope: ${body.slice(0, 200)}`
  } catch {
    return `a ${status} with a broken body: ${body.slice(0, 200)}`
  }
}

if (import.meta.main) {
  const { testUpstream } = await import('../fakes/upstream.ts')
  const { configFor, line, TestService } = await import('../service.ts')
  const [count = '100000', seed = '1'] = process.argv.slice(2)
  const upstream = await testUpstream()
  const service = await TestService.start(configFor(upstream.base_url))
  const input = [line('a'), line('b', 'b', { model: 'none' })]
  const batch = await service.run(input)
  const ids = [batch.id, batch.input_file_id, String(batch.output_file_id), String(batch.error_file_id)]
  const begun = performance.now()
  const siege = { url: service.url, key: service.key, ids, count: Number(count), seed: Number(seed) }
  const report = await besiege(siege)
  const after = await service.run(input)
  const seconds = Math.round((performance.now() - begun) / 1000)
  process.stdout.write(
    `${JSON.stringify({ ...report, seconds, a_batch_afterwards: after.status }, null, 2)}\n`,
  )
  await service[Symbol.asyncDispose]()
  await upstream.close()
  if (report.complaints.length > 0) process.exitCode = 1
}
