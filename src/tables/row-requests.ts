// Makes the request lines that ask a model about the rows of a table.
import { DEFAULT_ENDPOINT, EMBEDDINGS } from '../domain/endpoint.ts'
import type { AnswerSchema } from './answer-cells.ts'
import { columnIndex, compileTemplate, refuseSame, type Template } from './prompt-template.ts'
import { type Cell, cellText, RowError, rowId, TableError, type TableReader } from './table.ts'

/** The question about each row. */
export interface Asking {
  model: string
  /** Templates: `{{column}}` is the cell of that column. The prompt is the input where embeddings are asked for. */
  prompt: string
  embeds?: boolean | undefined
  system?: string | undefined
  /** `response_format` of every request. */
  schema?: AnswerSchema | undefined
  /** Other fields of every request's body. */
  parameters?: Readonly<Record<string, unknown>> | undefined
  /** The columns with an image's place; `imageUrl` says the address under which it is sent, or throws a RowError. */
  images?: readonly string[] | undefined
  imageUrl: (place: string) => Promise<string>
  /** The column whose cells become the `custom_id`s; without it they are `row-1` and so on. */
  idColumn?: string | undefined
  /** Whether rows without anything to ask about are left out. */
  skipsEmpty?: boolean | undefined
}

/** How messages call the parts of the question. */
type QuestionNames = Readonly<Record<'prompt' | 'system' | 'images' | 'idColumn', string>>

/** The default of `limits.line_bytes_max`. */
const LINE_BYTES_MAX = 8 * 1024 * 1024
/** With more, something is wrong with all rows. */
const SKIPPED_MAX = 100_000

/** How many rows were read, and why some have no request. */
export interface Prepared {
  rows: number
  /** How many rows are left out as empty. */
  empty: number
  /** The errors of rows without a request, by row number. */
  skipped: Map<number, string>
}

/** The question about the rows of one table. */
export class Question {
  readonly #asking: Asking
  readonly #prompt: Template
  readonly #system: Template | undefined
  readonly #images: readonly number[]
  readonly #id: number | undefined

  /** `file`: the name of the table in messages. Throws a TableError where a column is missing, or a template is none. */
  constructor({ columns }: TableReader, file: string, asking: Asking, names: QuestionNames) {
    const { prompt, system, images = [], idColumn } = asking
    this.#asking = asking
    this.#prompt = compileTemplate(prompt, columns, names.prompt, file)
    this.#system = system === undefined ? undefined : compileTemplate(system, columns, names.system, file)
    this.#images = images.map((name) => columnIndex(name, columns, names.images, file))
    this.#id = idColumn === undefined ? undefined : columnIndex(idColumn, columns, names.idColumn, file)
    if (images.length === 0) refuseSame([this.#prompt, this.#system], prompt, columns, names.prompt, file)
  }

  /** Why no request can be made of a row; null where one can. */
  async whyNot(cells: readonly Cell[]): Promise<string | null> {
    try {
      await this.#line(1, cells)
      return null
    } catch (error) {
      if (error instanceof RowError) return error.message
      throw error
    }
  }

  /** Whether the row is left out, since nothing is in any column that the prompt, or an image, comes from. */
  leavesOut(cells: readonly Cell[]): boolean {
    if (!this.#asking.skipsEmpty) return false
    const isBlank = (column: number): boolean => cellText(cells[column]).trim() === ''
    const columns = [...this.#prompt.columns, ...this.#images]
    return columns.length === 0 ? this.#prompt(cells).trim() === '' : columns.every(isBlank)
  }

  /**
   * A line for each row that has a request, counted into `prepared`; of at most `limit` rows. Throws a TableError at the
   * end where there is none.
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
      } catch (error) {
        if (!(error instanceof RowError)) throw error
        prepared.skipped.set(prepared.rows, error.message)
        if (prepared.skipped.size > SKIPPED_MAX) break
      }
    }
    checkPrepared(prepared)
  }

  /** One line of JSON with its line break. Throws RowError. */
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

/** `strict` only where OpenAI's rules for it are met; other servers follow the schema either way. */
function responseFormat({ schema, fields }: AnswerSchema): object {
  const closed = 'additionalProperties' in schema && schema.additionalProperties === false
  const strict = closed && fields.every(({ required }) => required)
  return { type: 'json_schema', json_schema: { name: 'answer', ...(strict ? { strict } : {}), schema } }
}
