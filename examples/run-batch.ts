// What the other examples share: a client of a running service, and one batch from lines to results.
//
//   npx offpeak serve                       # in another shell, in the same folder
//
// OFFPEAK_BASE_URL and OFFPEAK_API_KEY name another service; without them it is the one on this machine.
import { readFileSync } from 'node:fs'
import OpenAI, { toFile } from 'openai'

const POLL_MS = 200
const ENDED = ['completed', 'failed', 'expired', 'cancelled']

const address = process.env.OFFPEAK_BASE_URL ?? 'http://127.0.0.1:8080'

await fetch(`${address}/readyz`).catch(() => {
  console.error(`${address} cannot be reached: start it with "npx offpeak serve", or set OFFPEAK_BASE_URL`)
  process.exit(1)
})
const apiKey = process.env.OFFPEAK_API_KEY ?? readFileSync('offpeak-data/api-key-openai', 'utf8').trim()

export const client = new OpenAI({ baseURL: `${address}/v1`, apiKey })

export interface Line {
  custom_id: string
  body: object
  metadata?: Record<string, string>
}

export interface Result {
  id: string
  custom_id: string
  response: { status_code: number; request_id: string; body: OpenAI.ChatCompletion } | null
  error: { code: string; message: string } | null
}

export interface Finished {
  batch: OpenAI.Batch
  output: Result[]
  errors: Result[]
}

/** Uploads the lines, creates a batch, waits for its end and downloads both result files. */
export async function runBatch(lines: readonly Line[], metadata?: Record<string, string>): Promise<Finished> {
  const text = lines.map((line) => JSON.stringify({ ...line, method: 'POST', url: '/v1/chat/completions' }))
  const file = await client.files.create({
    purpose: 'batch',
    file: await toFile(Buffer.from(`${text.join('\n')}\n`), 'requests.jsonl'),
  })
  await client.files.waitForProcessing(file.id, { pollInterval: POLL_MS })
  let batch = await client.batches.create({
    input_file_id: file.id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    ...(metadata && { metadata }),
  })
  while (!ENDED.includes(batch.status)) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS))
    batch = await client.batches.retrieve(batch.id)
  }
  return {
    batch,
    output: await download(batch.output_file_id),
    errors: await download(batch.error_file_id),
  }
}

/** A file without lines does not exist: its ID is null. */
async function download(id: string | null | undefined): Promise<Result[]> {
  if (!id) return []
  const text = await (await client.files.content(id)).text()
  return text
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line))
}
