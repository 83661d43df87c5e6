// Makes the request lines that ask a model about the rows of a table.
import { DEFAULT_ENDPOINT, EMBEDDINGS } from '../domain/endpoint.ts'
import type { AnswerSchema } from './answer-cells.ts'
import type { ColumnOrder } from './column-order.ts'
import { columnIndex, compileTemplate, refuseSame, type Template } from './prompt-template.ts'
import { type Cell, cellText, RowError, rowId, TableError, type TableReader } from './table.ts'

/** The question that is asked about each row. */
export interface Asking {
  model: string
  /** The template of the prompt, with `{{column}}` for the cell of a column; the input where embeddings are wanted. */
  prompt: string
  embeds?: boolean | undefined
  system?: string | undefined
  /** The `response_format` of every request. */
  schema?: AnswerSchema | undefined
  /** Further fields of every request's body, such as `temperature`. */
  parameters?: Readonly<Record<string, unknown>> | undefined
  /** The columns with an image's path or URL; `imageUrl` returns the URL that is sent, or throws a RowError. */
  images?: readonly string[] | undefined
  imageUrl: (place: string) => Promise<string>
  /** The column whose cells become the `custom_id`s; absent: they are `row-1` and so on. */
  idColumn?: string | undefined
  /** Whether rows are skipped whose prompt columns are all blank. */
  skipsEmpty?: boolean | undefined
}

/** The names of the question's parts in error messages. */
type QuestionNames = Readonly<Record<'prompt' | 'system' | 'images' | 'idColumn', string>>

/** The longest request line in bytes, the default of `limits.line_bytes_max`. */
const LINE_BYTES_MAX = 8 * 1024 * 1024
/** The most rows without a request: with more, all rows have the same error. */
const SKIPPED_MAX = 100_000

/** The counts of a table's rows that were read. */
export interface Prepared {
  rows: number
  /** The number of rows skipped as empty. */
  empty: number
  /** The errors of rows without a request, by row number. */
  skipped: Map<number, string>
  /** Compares the orders of the prompt's columns by the rows with a request. */
  order?: ColumnOrder
}

/** Makes the requests for the rows of one table. */
export class Question {
  readonly #asking: Asking
  readonly #prompt: Template
  readonly #system: Template | undefined
  readonly #images: readonly number[]
  readonly #id: number | undefined

  /** Compiles the question. Throws a TableError, which names `file`, for a missing column or an invalid template. */
  constructor({ columns }: TableReader, file: string, asking: Asking, names: QuestionNames) {
    const { prompt, system, images = [], idColumn } = asking
    this.#asking = asking
    this.#prompt = compileTemplate(prompt, columns, names.prompt, file)
    this.#system = system === undefined ? undefined : compileTemplate(system, columns, names.system, file)
    this.#images = images.map((name) => columnIndex(name, columns, names.images, file))
    this.#id = idColumn === undefined ? undefined : columnIndex(idColumn, columns, names.idColumn, file)
    if (images.length === 0) refuseSame([this.#prompt, this.#system], prompt, columns, names.prompt, file)
  }

  /** The error for which a row has no request; null where it has one. */
  async whyNot(cells: readonly Cell[]): Promise<string | null> {
    try {
      await this.#line(1, cells)
      return null
    } catch (error) {
      if (error instanceof RowError) return error.message
      throw error
    }
  }

  /** Whether a row is skipped because all columns for prompt and images are blank. */
  leavesOut(cells: readonly Cell[]): boolean {
    if (!this.#asking.skipsEmpty) return false
    const isBlank = (column: number): boolean => cellText(cells[column]).trim() === ''
    const columns = [...this.#prompt.columns, ...this.#images]
    return columns.length === 0 ? this.#prompt(cells).trim() === '' : columns.every(isBlank)
  }

  /**
   * Makes a line for each row with a request, at most `limit` rows, and counts rows in `prepared`. Throws a TableError
   * at the end where there is no line.
   */
  async *lines(
    table: TableReader,
    prepared: Prepared,
    limit = Number.POSITIVE_INFINITY,
  ): AsyncGenerator<string> {
    for await (const { cells } of table.rows()) {
      if (prepared.rows === limit) break
      prepared.rows++
      if (this.leavesOut(cells)) {
        prepared.empty++
        continue
      }
      try {
        yield await this.#line(prepared.rows, cells)
        prepared.order?.add((column) => cellText(cells[column]))
      } catch (error) {
        if (!(error instanceof RowError)) throw error
        prepared.skipped.set(prepared.rows, error.message)
        if (prepared.skipped.size > SKIPPED_MAX) break
      }
    }
    checkPrepared(prepared)
  }

  /** Makes one line of JSON with its line break. Throws RowError. */
  async #line(row: number, cells: readonly Cell[]): Promise<string> {
    const { model, schema, parameters, embeds } = this.#asking
    const text = this.#prompt(cells)
    if (text.length > LINE_BYTES_MAX) throw tooLarge()
    const images = await this.#imageParts(cells)
    const content = images.length === 0 ? text : [{ type: 'text', text }, ...images]
    const messages = [
      ...(this.#system === undefined ? [] : [{ role: 'system', content: this.#system(cells) }]),
      { role: 'user', content },
    ]
    const chat = { messages, ...(schema === undefined ? {} : { response_format: responseFormat(schema) }) }
    const body = { ...parameters, model, ...(embeds ? { input: text } : chat) }
    const url = embeds ? EMBEDDINGS : DEFAULT_ENDPOINT
    const custom_id = this.#id === undefined ? rowId(row) : cellText(cells[this.#id])
    const line = `${JSON.stringify({ custom_id, method: 'POST', url, body })}\n`
    if (line.length > LINE_BYTES_MAX / 4 && Buffer.byteLength(line) > LINE_BYTES_MAX) throw tooLarge()
    return line
  }

  async #imageParts(cells: readonly Cell[]): Promise<object[]> {
    const parts: object[] = []
    for (const column of this.#images) {
      const place = cellText(cells[column]).trim()
      if (place === '') continue
      const url = /^(https?|data):/i.test(place) ? place : await this.#asking.imageUrl(place)
      parts.push({ type: 'image_url', image_url: { url } })
    }
    return parts
  }
}

function tooLarge(): RowError {
  return new RowError(`its request is larger than ${LINE_BYTES_MAX / 1024 / 1024} MiB`)
}

function checkPrepared({ rows, empty, skipped }: Prepared): void {
  if (rows === 0) throw new TableError('the table has columns, but no rows')
  if (rows === empty)
    throw new TableError('every row is empty in the columns of the prompt; there is nothing to ask')
  const [first] = skipped
  const tried = rows - empty
  if (first === undefined || (skipped.size < tried && skipped.size <= SKIPPED_MAX)) return
  throw new TableError(
    `no request can be made of ${skipped.size === tried ? 'any' : `more than ${SKIPPED_MAX}`} row; row ${first[0]}: ${first[1]}`,
  )
}

/** The `response_format` of a schema; `strict` only where it meets OpenAI's rules, which other servers ignore. */
function responseFormat({ schema, fields }: AnswerSchema): object {
  const closed = 'additionalProperties' in schema && schema.additionalProperties === false
  const strict = closed && fields.every(({ required }) => required)
  return { type: 'json_schema', json_schema: { name: 'answer', ...(strict ? { strict } : {}), schema } }
}
