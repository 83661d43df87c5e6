// Compares two batches line by line, by custom_id; lines that differ come first.
import { isRecord } from '../domain/json-record.ts'
import { lineOfRequest, objectOf } from './answer-columns.ts'

const EXCERPT_CHARACTERS = 240
/** The common characters that an excerpt shows before the first difference. */
const LEAD_CHARACTERS = 30
/** The product of two texts' differing word counts above which they are one difference. */
const WORD_PAIRS_MAX = 4_000_000

/** The result of a line in one batch. Answers of large batches would not fit into a browser: a hash stands for each. */
export interface Side {
  line: number
  failed: boolean
  /** The answer, or its beginning where it is long. */
  answer: string
  hash: string
  cost_usd: number
  tokens: number
}

type Difference = 'status' | 'answer' | 'missing' | 'same'

export type Pair = { custom_id: string; a: Side | null; b: Side | null; difference: Difference }

/** The comparable form of a result line. `room`: the least characters of its answer that are kept. */
export function sideOf(text: string, room = 0): { custom_id: string; side: Side } {
  const result = objectOf(JSON.parse(text))
  const { id, custom_id, response, error } = result
  const { total_tokens = 0, cost_usd = 0 } = objectOf(objectOf(objectOf(response).body).usage)
  const answer = answerOf(result)
  return {
    custom_id: String(custom_id),
    side: {
      line: lineOfRequest(String(id)),
      failed: isRecord(error),
      answer: answer.slice(0, Math.max(room, EXCERPT_CHARACTERS)),
      hash: hashOf(answer),
      cost_usd: Number(cost_usd),
      tokens: Number(total_tokens),
    },
  }
}

/** The text of a model's answer, or the error of the line; an answer of another shape as JSON. */
export function answerOf({ response, error }: Record<string, unknown>): string {
  if (isRecord(error)) return `${error.code}: ${error.message}`
  const { usage: _, id: __, created: ___, ...body } = objectOf(objectOf(response).body)
  const messages = Array.isArray(body.choices) ? body.choices.map((choice) => objectOf(choice).message) : []
  const texts = messages.map((message) => {
    const { role: _, ...rest } = objectOf(message)
    const said = Object.entries(rest).filter(([, value]) => value !== null && value !== undefined)
    const [only] = said
    return said.length === 1 && only && typeof only[1] === 'string' ? only[1] : JSON.stringify(rest)
  })
  return texts.length > 0 ? texts.join('\n') : JSON.stringify(body)
}

/** A 53-bit hash of a text. */
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

/** An excerpt of each answer at their first difference. */
export function excerptsOf({ a, b }: Pair): (string | null)[] {
  const [one = '', other = ''] = [a?.answer, b?.answer]
  let at = 0
  while (at < one.length && one[at] === other[at]) at++
  const isCut = one !== other && other !== '' && at > LEAD_CHARACTERS
  const from = isCut ? one.lastIndexOf(' ', at - LEAD_CHARACTERS) + 1 || at - LEAD_CHARACTERS : 0
  const cut = (text: string): string => (isCut ? '…' : '') + text.slice(from, from + EXCERPT_CHARACTERS)
  return [a, b].map((side) => side && cut(side.answer))
}

/** A part of an answer, and whether the other answer lacks it. */
export type AnswerPart = { text: string; isOwn: boolean }

/** Both texts in parts of words that they share or do not. */
export function wordDifferences(one: string, other: string): [AnswerPart[], AnswerPart[]] {
  const [a, b] = [wordsOf(one), wordsOf(other)]
  let start = 0
  while (start < a.length && a[start] === b[start]) start++
  let end = 0
  while (end < Math.min(a.length, b.length) - start && a.at(-1 - end) === b.at(-1 - end)) end++
  const [toA, toB] = [a.length - end, b.length - end]
  const isBounded = (toA - start) * (toB - start) <= WORD_PAIRS_MAX
  /** The number of common words, in order, behind two positions. */
  const common = Array.from(
    { length: isBounded ? toA - start + 1 : 0 },
    () => new Uint16Array(toB - start + 1),
  )
  const behind = (i: number, j: number): number => common[i - start]?.[j - start] ?? 0
  if (isBounded)
    for (let i = toA - 1; i >= start; i--)
      for (let j = toB - 1; j >= start; j--)
        common[i - start]![j - start] =
          a[i] === b[j] ? behind(i + 1, j + 1) + 1 : Math.max(behind(i + 1, j), behind(i, j + 1))
  const own: [Set<number>, Set<number>] = [new Set(), new Set()]
  for (let [i, j] = [start, start]; i < toA || j < toB; ) {
    const isCommon = i < toA && j < toB && a[i] === b[j]
    const isNext = !isCommon && (j === toB || (i < toA && behind(i + 1, j) >= behind(i, j + 1)))
    if (isNext) own[0].add(i)
    else if (!isCommon) own[1].add(j)
    i += isCommon || isNext ? 1 : 0
    j += isNext ? 0 : 1
  }
  return [partsOf(a, own[0]), partsOf(b, own[1])]
}

const wordsOf = (text: string): string[] =>
  [...new Intl.Segmenter(undefined, { granularity: 'word' }).segment(text)].map(({ segment }) => segment)

/** Joins words into parts; space between two own words is own as well. */
function partsOf(words: readonly string[], own: ReadonlySet<number>): AnswerPart[] {
  const parts: AnswerPart[] = []
  for (const [i, text] of words.entries()) {
    const isOwn = own.has(i) || (own.has(i - 1) && own.has(i + 1) && text.trim() === '')
    const last = parts.at(-1)
    if (last?.isOwn === isOwn) last.text += text
    else parts.push({ text, isOwn })
  }
  return parts
}
