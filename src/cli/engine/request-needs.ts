// What the requests of a file need of a model server: the names that they call the model, and how many tokens the
// longest of them may take.
import { createReadStream } from 'node:fs'
import { createInterface } from 'node:readline'

/** Of a longer file, only the beginning is read. */
const BYTES_READ_MAX = 64 * 1024 * 1024
/** A token is rarely shorter. */
const BYTES_PER_TOKEN = 3
/** Where a request does not say how long its answer may be. */
const ANSWER_TOKENS = 1024

export interface RequestNeeds {
  models: string[]
  tokens: number
}

/** Lines that cannot be read are left to the service, which names them. */
export async function requestNeeds(path: string): Promise<RequestNeeds> {
  const models = new Set<string>()
  let tokens = 0
  const lines = createInterface({ input: createReadStream(path, { end: BYTES_READ_MAX }) })
  for await (const line of lines) {
    const body = bodyOf(line)
    if (body === null) continue
    const { model, max_tokens, max_completion_tokens } = body
    if (typeof model === 'string') models.add(model)
    const asked = [max_completion_tokens, max_tokens].find((one) => typeof one === 'number')
    const answer = typeof asked === 'number' ? asked : ANSWER_TOKENS
    tokens = Math.max(tokens, Math.ceil(Buffer.byteLength(line) / BYTES_PER_TOKEN) + answer)
  }
  return { models: [...models], tokens }
}

function bodyOf(line: string): Record<string, unknown> | null {
  try {
    const parsed: { body?: unknown } | null = JSON.parse(line)
    const body = parsed?.body
    return typeof body === 'object' && body !== null ? { ...body } : null
  } catch {
    return null
  }
}
