// Sends a file as a form while costing the machine next to nothing: `fetch` with a FormData takes more CPU to send
// a megabyte than the service to receive, judge and store it, and would be what is measured.
import { once } from 'node:events'
import { open } from 'node:fs/promises'
import { type IncomingMessage, request } from 'node:http'
import { text } from 'node:stream/consumers'

const BLOCK_BYTES = 1024 * 1024
const BOUNDARY = 'offpeak-bench'
const HEAD = `--${BOUNDARY}\r
content-disposition: form-data; name="purpose"\r
\r
batch\r
--${BOUNDARY}\r
content-disposition: form-data; name="file"; filename="input.jsonl"\r
content-type: application/x-ndjson\r
\r
`
const TAIL = `\r\n--${BOUNDARY}--\r\n`

/** The answer's body; throws when the status is not 200. */
export async function sendFile(url: string, key: string, path: string): Promise<string> {
  await using file = await open(path, 'r')
  const { size } = await file.stat()
  const sending = request(url, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${key}`,
      'content-type': `multipart/form-data; boundary=${BOUNDARY}`,
      'content-length': HEAD.length + size + TAIL.length,
    },
  })
  const answered: Promise<[IncomingMessage]> = once(sending, 'response') as Promise<[IncomingMessage]>
  answered.catch(() => {})
  sending.write(HEAD)
  const blocks = [Buffer.allocUnsafeSlow(BLOCK_BYTES), Buffer.allocUnsafeSlow(BLOCK_BYTES)]
  let sent: Promise<unknown> = Promise.resolve()
  for (let at = 0, i = 0; at < size; i++) {
    const block = blocks[i % blocks.length]!
    const { bytesRead } = await file.read(block, 0, BLOCK_BYTES, at)
    if (bytesRead === 0) throw new Error(`${path} became shorter`)
    at += bytesRead
    // The block before is being sent while this one is read; it is free again when this one goes.
    await sent
    sent = new Promise<void>((resolve, reject) => {
      sending.write(block.subarray(0, bytesRead), (error) => (error ? reject(error) : resolve()))
    })
    sent.catch(() => {})
  }
  await sent
  sending.end(TAIL)
  const [answer] = await answered
  const body = await text(answer)
  if (answer.statusCode !== 200) throw new Error(`POST ${url}: ${answer.statusCode} ${body}`)
  return body
}
