// The question about each row of a table: the options of run and prepare, and their values as the state of a run stores
// them, so that a retry asks the same without its options.
import { readFile } from 'node:fs/promises'
import { dirname, extname, resolve } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { type Command, InvalidArgumentError } from 'commander'
import Type, { type Static } from 'typebox'
import { parsedJson } from '../../domain/json-record.ts'
import { nearest } from '../../domain/text.ts'
import { type AnswerSchema, answerSchema, EMBEDDING, FIELDS_MAX } from '../../tables/answer-cells.ts'
import type { ColumnOrder } from '../../tables/column-order.ts'
import { BadRow, firstObject } from '../../tables/jsonl-table.ts'
import type { Prepared, Question } from '../../tables/row-requests.ts'
import { type SchemaCheck, SchemaChecks } from '../../tables/schema-checks.ts'
import { formatOf, QUESTION_FIELDS, RowError, type TableReader } from '../../tables/table.ts'
import { writeWhole } from '../output-file.ts'
import { fileSource } from '../tables/open-table.ts'
import { Failure, Interrupted } from '../terminal/failure.ts'
import { pairsOf, wholeNumber } from '../terminal/option-values.ts'

/** The options of a question, with the content of the files that they name. */
export const TableTerms = Type.Object({
  model: Type.String(),
  /** The template of the prompt or, with `embeds`, of the input. */
  prompt: Type.String(),
  embeds: Type.Optional(Type.Boolean()),
  prompt_file: Type.Optional(Type.String()),
  system: Type.Optional(Type.String()),
  schema: Type.Optional(Type.Unknown()),
  image: Type.Optional(Type.Array(Type.String())),
  param: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  limit: Type.Optional(Type.Number()),
  prefix: Type.Optional(Type.String()),
  delimiter: Type.Optional(Type.String()),
  spreadsheet: Type.Optional(Type.Boolean()),
  skip_empty: Type.Optional(Type.Boolean()),
})
export type TableTerms = Static<typeof TableTerms>

/** The options of a question, which name files. */
export interface TableFlags
  extends Partial<Omit<TableTerms, 'schema' | 'prompt_file' | 'skip_empty' | 'embeds'>> {
  input?: string
  schema?: string
  promptFile?: string
  skipEmpty?: boolean
}

export const SPREADSHEET =
  'CSV is for spreadsheets: an apostrophe keeps texts from running as formulas, and is taken away from what is read'

/** Adds the options for tables. `model`: the description of `--model`. */
export function withTable(command: Command, model = 'the model that answers'): Command {
  return command
    .option('--model <id>', model)
    .option('--prompt <template>', 'table: what to ask about each row; {{column}} is its cell')
    .option('--prompt-file <file>', 'table: a file with the prompt')
    .option(
      '--input <template>',
      'table: ask for the embedding of this text of each row, in place of a prompt',
    )
    .option('--system <template>', 'table: the system message')
    .option('--schema <file>', 'table: the JSON Schema of the answers; each property becomes a column')
    .option(
      '--image <column>',
      'table: send the image that this column names; may be repeated',
      (text, earlier: string[] = []) => [...earlier, text],
    )
    .option(
      '--param <key=value>',
      'table: a field of each request, such as max_tokens=100; may be repeated',
      pairsOf(fieldValue),
    )
    .option('--limit <rows>', 'table: only the first rows', wholeNumber(1))
    .option('--skip-empty', 'table: do not ask about rows in which all columns of the prompt are empty')
    .option('--delimiter <character>', 'table: what separates the cells of a CSV file', delimiter)
    .option('--spreadsheet', `table: ${SPREADSHEET}`)
}

/** Whether the options ask a question about rows. */
export function hasPrompt({ prompt, promptFile, input }: TableFlags): boolean {
  return prompt !== undefined || promptFile !== undefined || input !== undefined
}

/** Whether the input is a table. Throws for a table without a prompt, and for requests with one. */
export async function isTable(input: string, flags: TableFlags): Promise<boolean> {
  const asked = hasPrompt(flags)
  const format = formatOf(input)
  if (format !== 'jsonl') {
    if (asked || format === undefined) return asked
    throw new Failure(`${input} is a table; say what to ask about each row: --prompt "Classify: {{column}}"`)
  }
  const first = await firstObject(await fileSource(input)).catch((error: unknown) => {
    // The service names every invalid line of a file of requests.
    if (error instanceof BadRow) return undefined
    throw error
  })
  const requests = first === undefined || ['custom_id', 'body', 'method', 'url'].some((key) => key in first)
  if (asked && requests && first !== undefined && 'custom_id' in first && 'body' in first)
    throw new Failure(`${input} holds requests already, not the rows of a table; leave out --prompt`)
  if (!asked && !requests) {
    const columns = Object.keys(first).join(', ')
    throw new Failure(
      `${input} holds rows (with the columns ${columns}), not requests; say what to ask about each row: --prompt "Classify: {{${Object.keys(first)[0] ?? 'column'}}}". To send its lines as they are, each needs "custom_id", "method", "url" and "body"`,
    )
  }
  return asked
}

/** The names of the given options that only a table has. */
export function tableOnly(flags: TableFlags): string[] {
  const { system, schema, image, param, limit, prefix, delimiter: cells, spreadsheet, skipEmpty } = flags
  const given = { system, schema, image, param, limit, prefix, delimiter: cells, spreadsheet }
  const named = { ...given, 'skip-empty': skipEmpty }
  return Object.entries(named).flatMap(([name, value]) => (value === undefined ? [] : [`--${name}`]))
}

/** Reads the terms of a question. Throws without a question or a model. */
export async function tableTerms(flags: TableFlags): Promise<TableTerms> {
  const { model, prompt, ...terms } = await givenTerms(flags)
  if (model === undefined)
    throw new Failure('say which model answers, for example --model sim-1; "offpeak models list" shows all')
  if (prompt === undefined || prompt.trim() === '')
    throw new Failure('say what to ask about each row: --prompt "Classify: {{column}}"')
  return { model, prompt, ...terms }
}

async function givenTerms(flags: TableFlags): Promise<Partial<TableTerms>> {
  const { model, prompt, promptFile, system, schema, image, param, limit, prefix, skipEmpty } = flags
  const { delimiter: cells, spreadsheet, input } = flags
  if (prompt !== undefined && promptFile !== undefined)
    throw new Failure('--prompt and --prompt-file both give the prompt; leave out one of the two')
  const ofChat = Object.entries({ prompt, 'prompt-file': promptFile, system, schema, image })
  const other = input === undefined ? undefined : ofChat.find(([, value]) => value !== undefined)
  if (other)
    throw new Failure(`--input asks for embeddings, and --${other[0]} for texts; leave out one of the two`)
  const given = {
    ...{ model, prompt, system, image, param, limit, prefix, delimiter: cells, spreadsheet },
    ...(input === undefined ? {} : { prompt: input, embeds: true }),
    ...(promptFile === undefined ? {} : { prompt: await readText(promptFile), prompt_file: promptFile }),
    schema: schema === undefined ? undefined : (await readSchema(schema)).schema,
    skip_empty: skipEmpty,
  }
  // Only the fields that are stored.
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined))
}

/** Options about all rows and columns of the output, which a retry must not change. */
const OF_THE_OUTPUT = [
  'schema',
  'embeds',
  'limit',
  'prefix',
  'delimiter',
  'spreadsheet',
  'skip_empty',
] as const

/** The terms of a retry: those of the last run, except where an option is given. */
export async function retriedTerms(last: TableTerms, flags: TableFlags): Promise<TableTerms> {
  const given = await givenTerms(flags)
  const other = OF_THE_OUTPUT.find(
    (name) => given[name] !== undefined && !isDeepStrictEqual(given[name], last[name]),
  )
  if (other !== undefined)
    throw new Failure(
      `--${other === 'embeds' ? 'input' : other.replace('_', '-')} is not as in the last run, whose answers stay in the table; leave it out`,
    )
  return { ...last, ...given, ...(given.param && { param: { ...last.param, ...given.param } }) }
}

interface Asked {
  question: Question
  schema: AnswerSchema | undefined
}

export async function askedOf(input: string, table: TableReader, terms: TableTerms): Promise<Asked> {
  const { model, prompt, prompt_file, system, image, param, skip_empty: skipsEmpty, embeds } = terms
  const schema = answerSchema(terms.schema) ?? undefined
  // The library is loaded when needed: most commands have no question.
  const { Question } = await import('../../tables/row-requests.ts')
  const question = new Question(
    table,
    input,
    {
      model,
      prompt,
      system,
      schema,
      embeds,
      parameters: param,
      images: image,
      imageUrl: imageReader(input),
      skipsEmpty,
    },
    {
      prompt: prompt_file ?? (embeds ? '--input' : '--prompt'),
      system: '--system',
      images: '--image',
      idColumn: '',
    },
  )
  return { question, schema: embeds ? EMBEDDING : schema }
}

/** Fields that limit an answer's tokens; servers ignore a misspelt field, and an unlimited answer costs more. */
const TOKEN_LIMITS = ['max_tokens', 'max_completion_tokens', 'min_tokens']

/** The value in `max_tokens=100`: JSON, or text. */
function fieldValue(value: string, key: string): unknown {
  if (QUESTION_FIELDS.includes(key))
    throw new InvalidArgumentError('Use --model, --prompt, --input, --system and --schema.')
  const meant = TOKEN_LIMITS.includes(key) ? null : nearest(key, TOKEN_LIMITS)
  if (meant !== null) throw new InvalidArgumentError(`Did you mean ${meant}?`)
  const json = parsedJson(value)
  return json === undefined ? value : json
}

function delimiter(text: string): string {
  const found = text === '\\t' || text === 'tab' ? '\t' : text
  if (found.length === 1 && !/["\r\n]/.test(found)) return found
  throw new InvalidArgumentError('Expected one character, or tab.')
}

// The JSON Schema that answers are to follow: read from a file, and asked for as the `response_format` of requests.

/** The text of a file without a byte order mark, which is part of no prompt and of no JSON. */
async function readText(path: string): Promise<string> {
  return (await readFile(path, 'utf8')).replace(/^\ufeff/, '')
}

/** Reads the JSON Schema of an object from a file. */
export async function readSchema(path: string): Promise<AnswerSchema> {
  let schema: unknown
  try {
    schema = JSON.parse(await readText(path))
  } catch (error) {
    if (error instanceof SyntaxError) throw new Failure(`${path} is not JSON: ${error.message}`)
    throw error
  }
  const found = answerSchema(schema)
  if (found === null)
    throw new Failure(
      `${path} is not the schema of an object with 1 to ${FIELDS_MAX} "properties", for example {"type": "object", "properties": {"label": {"type": "string"}}}`,
    )
  const check = new SchemaChecks().begin('', found.schema)
  const reason = await check.whyUnusable()
  check.close()
  if (reason !== null) throw new Failure(`${path}: ${reason}`)
  return found
}

/** Makes the check of answers by their schema; the caller closes it. */
export function checkBy(form: AnswerSchema | undefined): SchemaCheck | undefined {
  return form && new SchemaChecks().begin('', form.schema)
}

// Makes the file of a batch's request lines from the rows of a table. A row of which none can be made is skipped, and its
// error goes into the table of answers.

interface PrepareOptions {
  /** The number of the table's first rows that are asked about; absent: all. */
  limit?: number | undefined
  signal: AbortSignal
  onRow(rows: number): void
  order?: ColumnOrder
}

export async function prepareRows(
  table: TableReader,
  question: Question,
  path: string,
  { limit, signal, onRow, order }: PrepareOptions,
): Promise<Prepared> {
  const prepared: Prepared = { rows: 0, empty: 0, skipped: new Map(), ...(order && { order }) }
  async function* lines(): AsyncGenerator<string> {
    for await (const line of question.lines(table, prepared, limit)) {
      yield line
      onRow(prepared.rows)
      if (signal.aborted) throw new Interrupted()
    }
  }
  await writeWhole(path, lines())
  return prepared
}

const IMAGE_TYPES = new Map([
  ['.png', 'image/png'],
  ['.jpg', 'image/jpeg'],
  ['.jpeg', 'image/jpeg'],
  ['.gif', 'image/gif'],
  ['.webp', 'image/webp'],
])

/** Makes a function that reads images by paths relative to the table's folder. It throws RowError. */
function imageReader(table: string): (place: string) => Promise<string> {
  const folder = dirname(resolve(table))
  return async (place) => {
    const type = IMAGE_TYPES.get(extname(place).toLowerCase())
    if (type === undefined)
      throw new RowError(
        `the image ${place} is not a ${[...IMAGE_TYPES.keys()].join(', ')} file or an address`,
      )
    try {
      return `data:${type};base64,${(await readFile(resolve(folder, place))).toString('base64')}`
    } catch (error) {
      const code = error instanceof Error && 'code' in error ? String(error.code) : String(error)
      throw new RowError(
        code === 'ENOENT' ? `there is no image ${place}` : `the image ${place} cannot be read (${code})`,
      )
    }
  }
}
