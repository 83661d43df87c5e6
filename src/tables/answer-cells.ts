// Reads result lines and makes their cells: the answer, or a cell for each field of the schema, and the error.
import { EMBEDDINGS } from '../domain/endpoint.ts'
import { isRecord, nestsDeeper, parsedJson } from '../domain/json-record.ts'
import { shortened } from '../domain/text.ts'
import { DEPTH_MAX, JsonScanner, Names } from '../jsonl/json-scan.ts'
import type { SchemaCheck } from './schema-checks.ts'
import { type Cell, type Column, type ColumnType, cellJson, isList, LIST_LEVELS_MAX } from './table.ts'

// The JSON Schema that answers follow: a column for each field.

interface AnswerField extends Column {
  required: boolean
  nullable: boolean
}

export interface AnswerSchema {
  schema: object
  /** The columns of the answers: one for each property, in the order of the schema. */
  fields: readonly AnswerField[]
}

/** The most columns of a schema: every row has every column, so a small schema could make a large table. */
export const FIELDS_MAX = 1_000

/** Reads a JSON Schema; null unless it is an object's with at most FIELDS_MAX properties. */
export function answerSchema(schema: unknown): AnswerSchema | null {
  if (!isRecord(schema) || !isRecord(schema.properties)) return null
  const { properties, required: names = [] } = schema
  const count = Object.keys(properties).length
  if (count === 0 || count > FIELDS_MAX || !Array.isArray(names) || !names.every(isText)) return null
  const required = new Set(names)
  const fields = Object.entries(properties).map(([name, field]) => {
    const forms = formsOf(field, schema)
    const type = typeOf(forms, schema)
    const nullable = type === 'json' || forms.some((form) => kindsOf(form).includes('null'))
    return { name, type, required: required.has(name), nullable }
  })
  return { schema, fields }
}

/** The longest schema in bytes that gives the columns their names. */
const VALUE_BYTES_MAX = 1024 * 1024
const pathOf = (...names: readonly string[]): Names<string>[] => names.map((name) => new Names(name))
const SCHEMA_PATHS = [
  pathOf('body', 'response_format', 'json_schema', 'schema'),
  pathOf('body', 'output_config', 'format', 'schema'),
]
const INPUT_PATH = pathOf('body', 'input')

/** The columns of a vector, in place of a caller's schema; answers are not checked by it. */
export const EMBEDDING: AnswerSchema = {
  schema: {},
  fields: [{ name: 'embedding', type: { items: 'float' }, required: true, nullable: false }],
}

/**
 * The columns of a batch's answers: the fields of the schema in its first request, or a vector. Undefined where an
 * answer is one cell. `request` is null once the input was deleted.
 */
export function formOfAnswers(endpoint: string, request: Buffer | null): AnswerSchema | undefined {
  if (endpoint === EMBEDDINGS) return request === null || asksOneVector(request) ? EMBEDDING : undefined
  if (request === null) return undefined
  const found = SCHEMA_PATHS.map((path) => answerSchema(valueAt(request, path)))
  return found.find((schema) => schema !== null) ?? undefined
}

/** Whether a request embeds one text: several texts have several vectors. */
function asksOneVector(request: Buffer): boolean {
  const input = valueAt(request, INPUT_PATH)
  return !Array.isArray(input) || input.length === 1 || typeof input[0] === 'number'
}

function valueAt(line: Buffer, path: readonly Names<string>[]): unknown {
  const json = new JsonScanner()
  json.open(line, 0, line.length)
  for (const names of path) {
    let more = json.kind() === 'object' && json.beginObject()
    while (more && json.key(names) === null) {
      json.skipValue()
      more = json.nextMember()
    }
    if (!more) return undefined
  }
  const start = json.at
  json.skipValue()
  if (json.fault !== null || json.at - start > VALUE_BYTES_MAX) return undefined
  return JSON.parse(line.toString('utf8', start, json.at))
}

const SCALARS: readonly string[] = ['string', 'integer', 'number', 'boolean']
/** The depth to which references and choices of a schema are followed. */
const FORMS_DEPTH_MAX = 8

/** The alternative schemas of a value: `anyOf` and references, as Pydantic writes optional fields and enums. */
function formsOf(field: unknown, root: object, depth = 0): unknown[] {
  if (!isRecord(field) || depth > FORMS_DEPTH_MAX) return [field]
  const { $ref, anyOf, oneOf, allOf } = field
  if (isText($ref)) return formsOf(referenced($ref, root), root, depth + 1)
  const only = Array.isArray(allOf) && allOf.length === 1 ? allOf : undefined
  const choices = [anyOf, oneOf, only].find(Array.isArray)
  return choices?.flatMap((one) => formsOf(one, root, depth + 1)) ?? [field]
}

/** Resolves a reference; undefined where it leads out of the schema, or nowhere. */
function referenced(ref: string, root: object): unknown {
  const [start, ...names] = ref.split('/')
  if (start !== '#') return undefined
  return names.reduce<unknown>((at, name) => (isRecord(at) ? at[name] : undefined), root)
}

function typeOf(forms: readonly unknown[], root: object, level = 0): ColumnType {
  const some = forms.filter((form) => kindsOf(form).some((kind) => kind !== 'null'))
  const kinds = new Set(some.flatMap(kindsOf))
  kinds.delete('null')
  if (kinds.size === 2 && kinds.has('integer') && kinds.has('number')) return 'number'
  const [kind] = kinds
  if (kinds.size === 1 && isScalar(kind)) return kind
  if (kinds.size === 1 && kind === 'array' && some.length === 1 && level < LIST_LEVELS_MAX)
    return { items: typeOf(formsOf(itemsOf(some[0]), root), root, level + 1) }
  return 'json'
}

/** The schema of all items of an array, if any. */
function itemsOf(field: unknown): unknown {
  return isRecord(field) && !('prefixItems' in field) ? field.items : undefined
}

/** The types of a value, or of its choices, since an enum often has no type; `any` without either. */
function kindsOf(field: unknown): readonly unknown[] {
  if (!isRecord(field)) return ['any']
  const { type, enum: choices = 'const' in field ? [field.const] : undefined } = field
  if (type !== undefined) return [type].flat()
  return Array.isArray(choices) && choices.length > 0 ? choices.map(kindOfValue) : ['any']
}

function kindOfValue(value: unknown): string {
  if (value === null) return 'null'
  return Number.isSafeInteger(value) ? 'integer' : Array.isArray(value) ? 'array' : typeof value
}

function isScalar(kind: unknown): kind is ColumnType {
  return typeof kind === 'string' && SCALARS.includes(kind)
}

export interface AnswerColumns {
  columns: readonly Column[]
  /** Makes the cells of each result, in the order of `columns`. */
  cells(results: readonly ResultRow[]): Promise<Cell[][]>
  /** Makes the cells of a row without an answer. `error`: the reason; null: the row was not asked about. */
  failed(error: string | null): Cell[]
}

/** Makes the columns of answers, named with `prefix`. With `check`, answers are checked by the whole schema. */
export function answerColumns(
  schema: AnswerSchema | undefined,
  prefix: string,
  check?: Pick<SchemaCheck, 'verdicts'> | undefined,
): AnswerColumns {
  const answer = schema?.fields ?? [{ name: 'answer', type: 'string' as const }]
  const named = [...answer, { name: 'error', type: 'string' as const }]
  const failed = (error: string | null): Cell[] => [...answer.map(() => null), error]
  /** The cells of a result; `json`: the text of an answer that fits its columns. */
  const cellsOf = ({ error, response }: ResultRow): { cells: Cell[]; json?: string } => {
    if (error) return { cells: failed(`${error.code}: ${error.message}`) }
    if (schema === EMBEDDING) {
      const vector = vectorOf(response?.body)
      return { cells: vector ? [vector, null] : failed('no_vector: the answer has not one vector') }
    }
    const told = answerOf(response?.body)
    if ('error' in told) return { cells: failed(told.error) }
    if (schema === undefined) return { cells: [told.text, null] }
    const fields = fieldsOf(told)
    if (typeof fields === 'string') return { cells: failed(fields) }
    const cells = fieldCells(fields, schema)
    return cells.at(-1) === null ? { cells, json: told.text } : { cells }
  }
  return {
    columns: named.map((column) => ({ ...column, name: `${prefix}${column.name}` })),
    failed,
    async cells(results) {
      const rows = results.map(cellsOf)
      if (!check) return rows.map(({ cells }) => cells)
      const verdicts = await check.verdicts(rows.flatMap(({ json }) => json ?? []))
      let next = 0
      return rows.map(({ cells, json }) =>
        json === undefined ? cells : [...cells.slice(0, -1), verdicts[next++] ?? null],
      )
    },
  }
}

/** Adds the cells of each result to the groups of results. */
export async function* withCells(
  results: AsyncIterable<readonly ResultRow[]>,
  columns: AnswerColumns,
): AsyncGenerator<{ result: ResultRow; cells: Cell[] }[]> {
  for await (const batch of results) {
    const cells = await columns.cells(batch)
    yield batch.map((result, i) => ({ result, cells: cells[i] ?? [] }))
  }
}

/** The vector of an answer; null where there is none, or several. */
function vectorOf(body: unknown): number[] | null {
  const [first, second] = isRecord(body) && Array.isArray(body.data) ? body.data : []
  const found: unknown = isRecord(first) && second === undefined ? first.embedding : undefined
  // A vector with `encoding_format: base64` has little-endian floats.
  if (isText(found)) {
    const bytes = Buffer.from(found, 'base64')
    return Array.from({ length: bytes.length >> 2 }, (_, i) => bytes.readFloatLE(4 * i))
  }
  return Array.isArray(found) && found.every((one): one is number => typeof one === 'number') ? found : null
}

/** The parts of a chat completion's or a completion's choice that become cells. */
interface Choice {
  message?: { content?: unknown; refusal?: string | null }
  text?: string
  finish_reason?: string | null
}

function isChoice(value: unknown): value is Choice {
  if (!isRecord(value) || !isTextIfAny(value.finish_reason)) return false
  const { message, text } = value
  if (text !== undefined && !isText(text)) return false
  return message === undefined || (isRecord(message) && isTextIfAny(message.refusal))
}

/** The choices of a chat completion or a completion; null for another body. */
function choicesOf(body: Record<string, unknown>): readonly Choice[] | null {
  const { choices } = body
  return Array.isArray(choices) && choices.length > 0 && choices.every(isChoice) ? choices : null
}

interface Message {
  content: readonly unknown[]
  stop_reason?: string | null
}

function isMessage(body: Record<string, unknown>): body is Record<string, unknown> & Message {
  return body.type === 'message' && Array.isArray(body.content) && isTextIfAny(body.stop_reason)
}

function isText(value: unknown): value is string {
  return typeof value === 'string'
}

function isTextIfAny(value: unknown): value is string | null | undefined {
  return value === undefined || value === null || isText(value)
}

/** Anthropic's words for finish reasons, by OpenAI's words. */
const FINISH_REASONS: Readonly<Record<string, string>> = { max_tokens: 'length', refusal: 'content_filter' }

type Answer = ({ text: string } | { error: string }) & { finishReason: string | null }

/** The text of a chat completion, a message or a completion; the whole body as JSON for any other endpoint. */
export function answerOf(body: unknown): Answer {
  if (isRecord(body) && isMessage(body)) {
    const { stop_reason, content } = body
    const finishReason = FINISH_REASONS[stop_reason ?? ''] ?? stop_reason ?? null
    const text = contentText(content)
    return text === null ? noText(finishReason) : { text, finishReason }
  }
  const choices = isRecord(body) ? choicesOf(body) : null
  if (choices === null) return { text: cellJson(body), finishReason: null }
  const [choice] = choices
  const finishReason = choice?.finish_reason ?? null
  const text = choice?.text ?? contentText(choice?.message?.content)
  if (text !== null) return { text, finishReason }
  const refusal = choice?.message?.refusal
  if (refusal) return { error: `refused: ${refusal}`, finishReason }
  return noText(finishReason)
}

function noText(finishReason: string | null): Answer {
  return { error: `no_text: the answer has no text (finish_reason ${finishReason ?? 'null'})`, finishReason }
}

function contentText(content: unknown): string | null {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return null
  const texts = content.flatMap((part) => (isRecord(part) && isText(part.text) ? [part.text] : []))
  return texts.length === 0 ? null : texts.join('')
}

/** The fields of an answer, or the error of an answer without fields. */
function fieldsOf({ text, finishReason }: Answer & { text: string }): Record<string, unknown> | string {
  const parsed = parsedJson(text)
  if (!isRecord(parsed)) {
    const cut = finishReason === 'length' ? ' (it was cut off: set a higher max_tokens)' : ''
    return `not_json: the answer is not a JSON object${cut}: ${shortened(text, SHOWN_CHARACTERS)}`
  }
  return nestsDeeper(parsed, DEPTH_MAX)
    ? `not_json: the answer nests deeper than ${DEPTH_MAX} levels`
    : { ...parsed }
}

/** Makes the cells of an answer's fields, the error last. A field of another type than its column's has no cell. */
function fieldCells(fields: Record<string, unknown>, { fields: columns }: AnswerSchema): Cell[] {
  const wrong: string[] = []
  const cells = columns.map(({ name, type, required, nullable }) => {
    const value = Object.hasOwn(fields, name) ? fields[name] : undefined
    if (value === undefined) {
      if (required) wrong.push(`${name} is missing`)
      return null
    }
    if (value === null ? nullable : hasType(value, type)) return value
    wrong.push(`${name} is ${shortened(cellJson(value), SHOWN_CHARACTERS)}, not ${nounOf(type)}`)
    return null
  })
  return [...cells, wrong.length === 0 ? null : `not_schema: ${wrong.join('; ')}`]
}

function nounOf(type: ColumnType): string {
  if (!isList(type)) return type === 'integer' ? 'an integer' : type === 'json' ? 'a value' : `a ${type}`
  return type.items === 'json' ? 'a list' : `a list in which each item is ${nounOf(type.items)}`
}

function hasType(value: unknown, type: ColumnType): boolean {
  if (type === 'json') return true
  if (isList(type))
    return Array.isArray(value) && value.every((item) => item === null || hasType(item, type.items))
  return type === 'integer' ? Number.isSafeInteger(value) : typeof value === type
}

const SHOWN_CHARACTERS = 200

// Parses a line of an output or error file for a table.

/** The fields of a result line that a table needs. */
export interface ResultRow {
  id: string
  custom_id: string
  response?: { status_code: number; body: unknown } | null
  error?: LineError | null
}

interface LineError {
  code: string
  message: string
}

function isLineError(value: unknown): value is LineError {
  return isRecord(value) && isText(value.code) && isText(value.message)
}

function isResultRow(row: unknown): row is ResultRow {
  if (!isRecord(row) || !isText(row.id) || !isText(row.custom_id)) return false
  const { response = null, error = null } = row
  const isAnswer = isRecord(response) && typeof response.status_code === 'number' && 'body' in response
  return (response === null || isAnswer) && (error === null || isLineError(error))
}

/** The longest result line in bytes that is parsed: parsing may take a hundred times the memory, for no cell. */
export const LINE_BYTES_MAX = 4 * 1024 * 1024
const NAMES = new Names('id', 'custom_id')

/**
 * Parses a result line; null where it is none. `line`: without its line break; the beginning is enough for one longer
 * than LINE_BYTES_MAX. `bytes`: the length of the whole line.
 */
export function parseResultRow(line: Buffer, bytes = line.length): ResultRow | null {
  const row: unknown = bytes > LINE_BYTES_MAX ? headOf(line, bytes) : JSON.parse(line.toString())
  if (!isResultRow(row)) return null
  // In OpenAI's format, an error is the body of an answer.
  const { status_code, body } = row.response ?? {}
  const error = status_code !== 200 && isRecord(body) ? body.error : null
  return isLineError(error) ? { ...row, response: null, error } : row
}

/** A result with the IDs at the beginning of a line, and an error in place of the rest. */
function headOf(line: Buffer, bytes: number): Record<string, unknown> {
  const mib = (size: number): number => Math.ceil(size / 1024 / 1024)
  const message = `the result takes ${mib(bytes)} MiB, and a table shows up to ${mib(LINE_BYTES_MAX)}: read it in the output file`
  const row: Record<string, unknown> = { error: { code: 'too_large', message } }
  const json = new JsonScanner()
  json.open(line, 0, line.length)
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const name = json.key(NAMES)
    if (name === null || !json.readString()) break
    row[name] = json.decode(json.text_start, json.text_end, json.text_escaped)
  }
  return row
}
