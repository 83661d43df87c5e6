// Compares two batches line by line, by custom_id; lines that differ come first.
import { isRecord } from '../domain/json-record.ts'
import { lineOfRequest, objectOf } from './answer-columns.ts'

const EXCERPT_CHARACTERS = 160

/** One batch's result of a line. The answers of large batches would not fit into a browser: a hash stands for each. */
export interface Side {
  line: number
  failed: boolean
  excerpt: string
  hash: string
  cost_usd: number
  tokens: number
}

type Difference = 'status' | 'answer' | 'missing' | 'same'

export type Pair = { custom_id: string; a: Side | null; b: Side | null; difference: Difference }

/** `text`: a result line of a batch. */
export function sideOf(text: string): { custom_id: string; side: Side } {
  const { id, custom_id, response, error } = objectOf(JSON.parse(text))
  const { usage, id: _, created: __, ...body } = objectOf(objectOf(response).body)
  const { total_tokens = 0, cost_usd = 0 } = objectOf(usage)
  const answer = isRecord(error) ? `${error.code}: ${error.message}` : answerOf(body)
  return {
    custom_id: String(custom_id),
    side: {
      line: lineOfRequest(String(id)),
      failed: isRecord(error),
      excerpt: answer.slice(0, EXCERPT_CHARACTERS),
      hash: hashOf(answer),
      cost_usd: Number(cost_usd),
      tokens: Number(total_tokens),
    },
  }
}

/** What a model said; an answer of another shape as it is. */
function answerOf(body: Record<string, unknown>): string {
  const messages = Array.isArray(body.choices) ? body.choices.map((choice) => objectOf(choice).message) : []
  const texts = messages.map((message) => {
    const { role: _, ...rest } = objectOf(message)
    const said = Object.entries(rest).filter(([, value]) => value !== null && value !== undefined)
    const [only] = said
    return said.length === 1 && only && typeof only[1] === 'string' ? only[1] : JSON.stringify(rest)
  })
  return texts.length > 0 ? texts.join('\n') : JSON.stringify(body)
}

/** 53 bits of it; equal answers have equal ones. */
function hashOf(text: string): string {
  let a = 0xdeadbeef
  let b = 0x41c6ce57
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    a = Math.imul(a ^ code, 2_654_435_761)
    b = Math.imul(b ^ code, 1_597_334_677)
  }
  return `${text.length}.${a >>> 0}.${b >>> 0}`
}

const ORDER: readonly Difference[] = ['status', 'answer', 'missing', 'same']

export function pairsOf(a: ReadonlyMap<string, Side>, b: ReadonlyMap<string, Side>): Pair[] {
  const ids = new Set([...a.keys(), ...b.keys()])
  const pairs = [...ids].map((custom_id) =>
    pairOf(custom_id, a.get(custom_id) ?? null, b.get(custom_id) ?? null),
  )
  const groups = ORDER.map((difference) => pairs.filter((pair) => pair.difference === difference))
  return groups.flat()
}

function pairOf(custom_id: string, a: Side | null, b: Side | null): Pair {
  const difference =
    a === null || b === null
      ? 'missing'
      : a.failed !== b.failed
        ? 'status'
        : a.hash === b.hash
          ? 'same'
          : 'answer'
  return { custom_id, a, b, difference }
}
