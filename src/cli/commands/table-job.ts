// A run over a table: its requests are made before the batch, and its answers are joined to its rows after it. What lies
// between is in a folder beside the output, which is deleted at the end of the run.
import { mkdir, readFile, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { type Command, InvalidArgumentError } from 'commander'
import { type AnswerSchema, answerColumns } from '../../tables/answer-cells.ts'
import type { WrittenRows } from '../../tables/result-table.ts'
import { formatOf, type TableReader, withoutEnding } from '../../tables/table.ts'
import { joinAnswers, joinedColumns, resultRows, type Target } from '../tables/join-answers.ts'
import { firstObject } from '../tables/jsonl-table.ts'
import { openTable } from '../tables/open-table.ts'
import { checkBy, readSchema, responseFormat } from '../tables/prompt-template.ts'
import { imageFolder, prepareRows, type Question } from '../tables/row-request.ts'
import { Failure } from '../terminal/failure.ts'
import { counted } from '../terminal/format.ts'
import { wholeNumber } from '../terminal/option-values.ts'
import { type ProgressView, waitLine } from '../terminal/progress-view.ts'
import { readRunState, runStatePath } from './run-batch.ts'

export interface TableJob {
  /** The files of the batch. */
  files: { input: string; output: string; errors: string }
  target: Target
  skipped: ReadonlyMap<number, string>
  /** Writes the table with the answers. */
  join(): Promise<WrittenRows>
  /** Deletes the folder, unless an interrupted run can be resumed from it. */
  clear(): Promise<void>
}

interface TableOrder extends TableFlags {
  input: string
  target: Target
  prefix: string
}

export function tableFolder(output: string): string {
  return `${output}.offpeak-run`
}

export async function removeTableFolder(output: string): Promise<void> {
  await rm(tableFolder(output), { recursive: true, force: true })
}

export async function startTableJob(
  order: TableOrder,
  view: ProgressView,
  signal: AbortSignal,
): Promise<TableJob> {
  const { input, target, prefix } = order
  const limit = order.limit ?? Number.POSITIVE_INFINITY
  const table = await openTable(input, order)
  const { question, schema } = await readQuestion(input, table, order)
  // Refused now rather than when the answers are paid for.
  joinedColumns(table, input, answerColumns(schema, prefix))
  const folder = tableFolder(target.path)
  const files = {
    input: join(folder, `${basename(withoutEnding(input))}.jsonl`),
    output: join(folder, 'answers.jsonl'),
    errors: join(folder, 'errors.jsonl'),
  }
  const clear = async (): Promise<void> => {
    const state = await readRunState(runStatePath(target.path))
    if (state === undefined || state.finished) await removeTableFolder(target.path)
  }
  await mkdir(folder, { recursive: true })
  try {
    const { skipped } = await prepareRows(table, question, files.input, {
      limit,
      signal,
      onRow: showRows(view),
    })
    const join = async (): Promise<WrittenRows> => {
      const check = schema && checkBy(schema)
      const answers = {
        columns: answerColumns(schema, prefix, check),
        results: resultRows(files.output, files.errors),
        skipped,
      }
      try {
        return await joinAnswers(table, input, answers, limit, target)
      } finally {
        check?.close()
      }
    }
    return { files, target, skipped, join, clear }
  } catch (error) {
    await clear()
    throw error
  }
}

const ROWS_PER_LOOK = 1000

/** Shows how many rows have a request. */
export function showRows(view: ProgressView): (rows: number) => void {
  return (rows) => {
    if (rows % ROWS_PER_LOOK !== 0) return
    view.show('preparing', (columns, paint) => waitLine(`preparing ${counted(rows, 'row')}`, columns, paint))
  }
}

/** The options that say what to ask about each row of a table, for run and prepare. */
export interface TableFlags {
  model?: string
  prompt?: string
  promptFile?: string
  system?: string
  schema?: string
  image?: string[]
  param?: Record<string, unknown>
  limit?: number
  delimiter?: string
  spreadsheet?: boolean
}

export const SPREADSHEET =
  'CSV is for spreadsheets: an apostrophe keeps texts from running as formulas, and is taken away from what is read'

export function withTable(command: Command): Command {
  return command
    .option(
      '--model <id>',
      'the model that answers, whichever a file of requests names; or a GGUF file, or with --engine a name, of the model to start',
    )
    .option('--prompt <template>', 'table: what to ask about each row; {{column}} is its cell')
    .option('--prompt-file <file>', 'table: a file with the prompt')
    .option('--system <template>', 'table: the system message')
    .option('--schema <file>', 'table: the JSON Schema of the answers; each property becomes a column')
    .option('--image <column>', 'table: send the image that this column names; may be repeated', list)
    .option(
      '--param <key=value>',
      'table: a field of each request, such as max_tokens=100; may be repeated',
      fields,
    )
    .option('--limit <rows>', 'table: only the first rows', wholeNumber(1))
    .option('--delimiter <character>', 'table: what separates the cells of a CSV file', delimiter)
    .option('--spreadsheet', `table: ${SPREADSHEET}`)
}

/** Whether the input is a table. Throws when it is one and no prompt is given, and the other way round. */
export async function isTable(input: string, flags: TableFlags): Promise<boolean> {
  const asked = flags.prompt !== undefined || flags.promptFile !== undefined
  const format = formatOf(input)
  if (format !== 'jsonl') {
    if (asked || format === undefined) return asked
    throw new Failure(`${input} is a table; say what to ask about each row: --prompt "Classify: {{column}}"`)
  }
  const first = await firstObject(input).catch((error: unknown) => {
    // The service names every bad line of a file of requests.
    if (error instanceof Failure) return undefined
    throw error
  })
  const requests = first === undefined || ['custom_id', 'body', 'method', 'url'].some((key) => key in first)
  if (asked && requests && first !== undefined && 'custom_id' in first && 'body' in first)
    throw new Failure(`${input} holds requests already, not the rows of a table; leave out --prompt`)
  if (!asked && !requests) {
    const columns = Object.keys(first).join(', ')
    throw new Failure(
      `${input} holds rows (with the columns ${columns}), not requests; say what to ask about each row: --prompt "Classify: {{${Object.keys(first)[0] ?? 'column'}}}"`,
    )
  }
  return asked
}

/** The names of options that only a table has, of those that are given. */
export function tableOnly(flags: TableFlags): string[] {
  const { system, schema, image, param, limit, delimiter: cells, spreadsheet } = flags
  const given = { system, schema, image, param, limit, delimiter: cells, spreadsheet }
  return Object.entries(given).flatMap(([name, value]) => (value === undefined ? [] : [`--${name}`]))
}

interface Asked {
  question: Question
  schema: AnswerSchema | undefined
}

export async function readQuestion(input: string, table: TableReader, flags: TableFlags): Promise<Asked> {
  const { model, prompt, promptFile, system, image = [], param = {} } = flags
  if (prompt !== undefined && promptFile !== undefined)
    throw new Failure('--prompt and --prompt-file both give the prompt; leave out one of the two')
  if (model === undefined)
    throw new Failure('say which model answers, for example --model sim-1; "offpeak models list" shows all')
  const { columns } = table
  const template = promptFile === undefined ? prompt : await readFile(promptFile, 'utf8')
  if (template === undefined || template.trim() === '')
    throw new Failure('say what to ask about each row: --prompt "Classify: {{column}}"')
  const schema = flags.schema === undefined ? undefined : await readSchema(flags.schema)
  // Its library is loaded when needed: most commands ask about no rows.
  const { columnIndex, compileTemplate } = await import('../tables/prompt-template.ts')
  const question: Question = {
    model,
    prompt: compileTemplate(template, columns, promptFile ?? '--prompt', input),
    system: system === undefined ? undefined : compileTemplate(system, columns, '--system', input),
    responseFormat: schema === undefined ? undefined : responseFormat(schema),
    parameters: param,
    images: image.map((name) => columnIndex(name, columns, '--image', input)),
    folder: imageFolder(input),
  }
  return { question, schema }
}

function list(text: string, earlier: string[] = []): string[] {
  return [...earlier, text]
}

const OWN_FIELDS = ['model', 'messages', 'response_format']

/** `max_tokens=100`: a JSON value, or text. */
function fields(text: string, earlier: Record<string, unknown> = {}): Record<string, unknown> {
  const at = text.indexOf('=')
  if (at < 1) throw new InvalidArgumentError('Expected key=value.')
  const key = text.slice(0, at)
  if (OWN_FIELDS.includes(key))
    throw new InvalidArgumentError('Use --model, --prompt, --system and --schema.')
  return { ...earlier, [key]: jsonOrText(text.slice(at + 1)) }
}

function jsonOrText(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

function delimiter(text: string): string {
  const found = text === '\\t' || text === 'tab' ? '\t' : text
  if (found.length === 1 && !/["\r\n]/.test(found)) return found
  throw new InvalidArgumentError('Expected one character, or tab.')
}
