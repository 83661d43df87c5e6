// The lines of one chunk, for the plan task and the dispatcher. Bodies stay in the chunk's bytes; a line has their
// positions.

import { type ChunkSpan, type Reask, readReask } from '../domain/batch.ts'
import { DEFAULT_ENDPOINT, type EndpointPath } from '../domain/endpoint.ts'
import { entityOf } from '../domain/entity.ts'
import type { WireError } from '../domain/errors.ts'
import type { Model } from '../domain/model.ts'
import { NO_SPEND, type Spend } from '../domain/money.ts'
import { hasByteOrderMark, isBlank, LF, withoutCr } from './byte-lines.ts'
import { checkLine } from './check-line.ts'
import { packNumbers, unpackNumbers } from './first-lines.ts'
import type { Span } from './json-scan.ts'
import { type InputLine, LineScanner } from './line-scan.ts'
import type { BodyFacts } from './line-scan-body.ts'
import {
  choicesOf,
  entriesOf,
  projectLines,
  projectPrompt,
  projectTokens,
  promptOf,
  promptReach,
} from './projection.ts'

export interface ChunkLine {
  /** The physical line number in the input file, from 1. */
  line: number
  /** The JSON string as the input wrote it, quotes included. */
  custom_id_json: string
  /** The model that the body names; null without one, and then the line has a `fault`. */
  model: string | null
  /** The name of the configured model; null for an unknown name, which must not create rows in the ledger. */
  known_model: string | null
  entity: string | null
  conversation: string | null
  tags: string | null
  body: Span
  model_spans: readonly Span[]
  /** JSON values, by field, that replace values which servers may reject; null: none. */
  replaced: ReadonlyMap<string, Buffer> | null
  /** The prompt, or the part of it that lines are most likely to share. */
  prompt: Span
  endpoint: EndpointPath
  /** Estimated input tokens, billed where the server reports no usage. */
  input_tokens: number
  /** Tokens projected for the prompts of all attempts. */
  input_tokens_max: number
  output_tokens_max: number
  /** Bytes of the prompt as written; null with media and unseen parts, whose tokens do not follow from their bytes. */
  prompt_bytes: number | null
  /** Whether the answer does not depend on chance. */
  isRepeatable: boolean
  /** The number of prompts: one for each of several inputs. */
  inputs: number
  /** The number of generated answers, all inputs together. */
  choices: number
  /** The number of entries of the answer; null where the endpoint does not determine it. */
  entries: number | null
  /** The projected spend of all attempts. */
  projected: Spend
  /** The error for which this line cannot run; null when it can. */
  fault: WireError | null
}

/** A line of which nothing but its number is known, and that ends with this error. */
export function lineThatCannotRun(line: number, fault: WireError): ChunkLine {
  const nowhere = { start: 0, end: 0 }
  return {
    ...{ line, fault, custom_id_json: 'null', model: null, known_model: null, entity: null },
    ...{ conversation: null, tags: null, endpoint: DEFAULT_ENDPOINT },
    ...{ body: nowhere, prompt: nowhere, model_spans: [], replaced: null },
    ...{ input_tokens: 0, input_tokens_max: 0, output_tokens_max: 0, prompt_bytes: null },
    ...{ isRepeatable: false, inputs: 1, choices: 1, entries: null, projected: NO_SPEND },
  }
}

/** The settings of the batch, for lines without settings of their own. */
interface BatchDefaults {
  endpoint: string
  /** Metadata as JSON; null: none. */
  metadata: string | null
  header_entity: string | null
  /** The reask setting as JSON; null: none. */
  reask: string | null
}

/** Thrown when the bytes of a chunk differ from the validated file. */
export class InputChanged extends Error {}

/**
 * Reads the lines of a chunk from its bytes. A line that does not scan was not in the validated file: that throws
 * InputChanged.
 */
export function readChunkLines(
  bytes: Buffer,
  span: ChunkSpan,
  models: ReadonlyMap<string, Model>,
  { metadata, reask, ...batch }: BatchDefaults,
): ChunkLine[] {
  const own = metadata === null ? {} : JSON.parse(metadata)
  const defaults = { ...batch, metadata: own, reask: readReask(reask) }
  const scanner = new LineScanner({ validated: true })
  const lines: ChunkLine[] = []
  for (const { line, start, end } of placesInChunk(bytes, span)) {
    const scanned = scanner.scan(bytes, start, end)
    if (!scanned.ok) throw new InputChanged(`line ${line} no longer reads as it did: ${scanned.message}`)
    lines.push(chunkLine(scanned, line, models, defaults))
  }
  if (lines.length !== span.line_count) {
    throw new InputChanged(
      `chunk ${span.index} holds ${lines.length} lines where validation counted ${span.line_count}`,
    )
  }
  return lines
}

/** The spans of a chunk's lines, without line breaks and blank lines. */
export function* placesInChunk(
  bytes: Buffer,
  chunk: Pick<ChunkSpan, 'first_line' | 'lines'>,
): Generator<Span & { line: number }, void, undefined> {
  const numbers = lineNumbers(chunk)
  let at = hasByteOrderMark(bytes, 0, bytes.length) ? 3 : 0
  for (let count = 0; at < bytes.length; count++) {
    const newline = bytes.indexOf(LF, at)
    const end = withoutCr(bytes, at, newline === -1 ? bytes.length : newline)
    const line = numbers === null ? chunk.first_line + count : numbers[count]
    if (line === undefined) throw new InputChanged(`the chunk has more lines than the ${count} it is of`)
    if (!isBlank(bytes, at, end)) yield { line, start: at, end }
    at = newline === -1 ? bytes.length : newline + 1
  }
}

// Chunks that share a stretch of the file list their lines: the differences between their numbers, deflated.

export function encodeLineNumbers(lines: readonly number[]): string {
  return packNumbers(lines.map((line, i) => line - (lines[i - 1] ?? 0)))
}

/** Ascending; null: they are consecutive. */
export function lineNumbers({ lines }: Pick<ChunkSpan, 'lines'>): number[] | null {
  if (!lines) return null
  let line = 0
  return Array.from(unpackNumbers(lines), (step) => {
    line += step
    return line
  })
}

/** The lines with these numbers, with their line breaks, out of the bytes of a stretch that begins with line `from`. */
export async function selectLines(
  stretch: AsyncIterable<Buffer>,
  from: number,
  numbers: readonly number[],
): Promise<Buffer> {
  const kept: Buffer[] = []
  let line = from
  let next = 0
  for await (const piece of stretch) {
    for (let at = 0; at < piece.length && next < numbers.length; ) {
      const newline = piece.indexOf(LF, at)
      const end = newline === -1 ? piece.length : newline + 1
      // A view would keep all of the piece in memory.
      if (line === numbers[next]) kept.push(Buffer.from(piece.subarray(at, end)))
      at = end
      if (newline === -1) break
      if (line === numbers[next]) next++
      line++
    }
    if (next === numbers.length) break
  }
  return Buffer.concat(kept)
}

function chunkLine(
  scanned: InputLine,
  line: number,
  models: ReadonlyMap<string, Model>,
  defaults: Pick<BatchDefaults, 'endpoint' | 'header_entity'> & {
    metadata: Readonly<Record<string, string>>
    reask: Reask | null
  },
): ChunkLine {
  const { body, bytes } = scanned
  const model = body.model === null ? undefined : models.get(body.model)
  const prompt = promptOf(body)
  const once = model ? projectTokens(scanned, model, prompt) : { input_tokens: 0, output_tokens_max: 0 }
  const all = projectLines(once, model, defaults.reask, 1, promptReach(body, prompt))
  const own = scanned.metadata
  const entity = entityOf(own, defaults.metadata, defaults.header_entity)
  return {
    line,
    custom_id_json: bytes.toString('utf8', scanned.custom_id_span.start - 1, scanned.custom_id_span.end + 1),
    model: body.model,
    known_model: model?.id ?? null,
    entity,
    conversation: own?.conversation ?? defaults.metadata.conversation ?? null,
    tags: own?.tags ?? defaults.metadata.tags ?? null,
    body: { start: body.span.start, end: body.span.end },
    model_spans: body.model_spans,
    replaced: replacedValues(body),
    prompt: { start: body.prompt.start, end: body.prompt.end },
    endpoint: scanned.url,
    input_tokens: model ? projectPrompt(prompt, model) : 0,
    input_tokens_max: all.tokens.input_tokens,
    output_tokens_max: once.output_tokens_max,
    prompt_bytes: prompt.exact_tokens > 0 || body.unseen ? null : prompt.bytes,
    isRepeatable: isRepeatable(body),
    inputs: prompt.inputs,
    choices: choicesOf(body),
    entries: entriesOf(body, prompt),
    projected: all.spend,
    fault: checkLine(scanned, models, defaults.endpoint),
  }
}

const JSON_FALSE = Buffer.from('false')
const JSON_NULL = Buffer.from('null')

/** Replacements for `stream` and `stream_options`: bodies may hold `false` or `null`, which some servers reject. */
function replacedValues({ fields }: BodyFacts): ChunkLine['replaced'] {
  const isStreamNull = fields.get('stream')?.kind === 'null'
  const areOptionsFalse = fields.get('stream_options')?.kind === 'false'
  if (!isStreamNull && !areOptionsFalse) return null
  const replaced = new Map<string, Buffer>()
  if (isStreamNull) replaced.set('stream', JSON_FALSE)
  if (areOptionsFalse) replaced.set('stream_options', JSON_NULL)
  return replaced
}

function isRepeatable({ endpoint, fields }: BodyFacts): boolean {
  const numberOf = (name: string): number | null => fields.get(name)?.number ?? null
  return !endpoint.samples || numberOf('temperature') === 0 || numberOf('seed') !== null
}
