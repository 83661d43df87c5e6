// The request line that asks a model about one row of a table.
import { readFile } from 'node:fs/promises'
import { dirname, extname, resolve } from 'node:path'
import { DEFAULT_ENDPOINT } from '../../domain/endpoint.ts'
import { type Cell, cellText, type TableReader } from '../../tables/table.ts'
import { Failure, Interrupted } from '../terminal/failure.ts'
import { writeWhole } from './open-table.ts'
import type { Template } from './prompt-template.ts'

export interface Question {
  model: string
  prompt: Template
  system?: Template | undefined
  /** `response_format` of every request. */
  responseFormat?: object | undefined
  /** Other fields of every request's body. */
  parameters: Readonly<Record<string, unknown>>
  /** Indexes of columns with the path or address of an image. */
  images: readonly number[]
  /** The folder of the table, from which the paths of images start. */
  folder: string
  /** Whether rows without anything to ask about are left out. */
  skipsEmpty: boolean
}

/** Whether the row is left out, since nothing is in any column that the prompt, or an image, comes from. */
export function isLeftOut(cells: readonly Cell[], { prompt, images, skipsEmpty }: Question): boolean {
  if (!skipsEmpty) return false
  const isBlank = (column: number): boolean => cellText(cells[column]).trim() === ''
  const columns = [...prompt.columns, ...images]
  return columns.length === 0 ? prompt(cells).trim() === '' : columns.every(isBlank)
}

/** A row of which no request can be made; the other rows can. */
class RowError extends Error {}

/** The default of `limits.line_bytes_max`. */
const LINE_BYTES_MAX = 8 * 1024 * 1024

const IMAGE_TYPES = new Map([
  ['.png', 'image/png'],
  ['.jpg', 'image/jpeg'],
  ['.jpeg', 'image/jpeg'],
  ['.gif', 'image/gif'],
  ['.webp', 'image/webp'],
])

const ROW_ID = /^row-([1-9]\d{0,14})$/

function rowId(row: number): string {
  return `row-${row}`
}

/** The row of a custom_id that `rowId` made, counted from 1; null for any other. */
export function rowOfId(custom_id: string): number | null {
  const digits = ROW_ID.exec(custom_id)?.[1]
  return digits === undefined ? null : Number(digits)
}

/** The folder that relative paths of images start from. */
export function imageFolder(table: string): string {
  return dirname(resolve(table))
}

/** One line of JSON with its line break. Throws RowError. */
async function requestLine(row: number, cells: readonly Cell[], question: Question): Promise<string> {
  const { model, prompt, system, responseFormat, parameters } = question
  const text = prompt(cells)
  const images = await imageParts(cells, question)
  const content = images.length === 0 ? text : [{ type: 'text', text }, ...images]
  const body = {
    ...parameters,
    model,
    messages: [
      ...(system === undefined ? [] : [{ role: 'system', content: system(cells) }]),
      { role: 'user', content },
    ],
    ...(responseFormat === undefined ? {} : { response_format: responseFormat }),
  }
  const line = `${JSON.stringify({ custom_id: rowId(row), method: 'POST', url: DEFAULT_ENDPOINT, body })}\n`
  if (line.length > LINE_BYTES_MAX / 4 && Buffer.byteLength(line) > LINE_BYTES_MAX)
    throw new RowError(`its request is larger than ${LINE_BYTES_MAX / 1024 / 1024} MiB`)
  return line
}

async function imageParts(cells: readonly Cell[], { images, folder }: Question): Promise<object[]> {
  const parts: object[] = []
  for (const column of images) {
    const place = cellText(cells[column]).trim()
    if (place !== '') parts.push({ type: 'image_url', image_url: { url: await imageUrl(place, folder) } })
  }
  return parts
}

async function imageUrl(place: string, folder: string): Promise<string> {
  if (/^(https?|data):/i.test(place)) return place
  const type = IMAGE_TYPES.get(extname(place).toLowerCase())
  if (type === undefined)
    throw new RowError(`the image ${place} is not a ${[...IMAGE_TYPES.keys()].join(', ')} file or an address`)
  try {
    return `data:${type};base64,${(await readFile(resolve(folder, place))).toString('base64')}`
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : String(error)
    throw new RowError(
      code === 'ENOENT' ? `there is no image ${place}` : `the image ${place} cannot be read (${code})`,
    )
  }
}

interface Prepared {
  rows: number
  /** How many rows are left out as empty. */
  empty: number
  /** The errors of rows without a request, by row number. */
  skipped: ReadonlyMap<number, string>
}

interface PrepareOptions {
  /** At most this many rows, from the first; all if not given. */
  limit?: number | undefined
  signal: AbortSignal
  onRow(rows: number): void
}

/** With more, something is wrong with all rows. */
const SKIPPED_MAX = 100_000

/**
 * Writes the request lines of a batch, made from the rows of a table. A row of which none can be made is skipped, and
 * its error goes into the table of answers.
 */
export async function prepareRows(
  table: TableReader,
  question: Question,
  path: string,
  { limit = Number.POSITIVE_INFINITY, signal, onRow }: PrepareOptions,
): Promise<Prepared> {
  const skipped = new Map<number, string>()
  let [rows, empty] = [0, 0]
  async function* lines(): AsyncGenerator<string> {
    for await (const { cells } of table.rows()) {
      if (rows === limit) break
      rows++
      if (isLeftOut(cells, question)) {
        empty++
        continue
      }
      try {
        yield await requestLine(rows, cells, question)
      } catch (error) {
        if (!(error instanceof RowError)) throw error
        skipped.set(rows, error.message)
      }
      onRow(rows)
      if (signal.aborted) throw new Interrupted()
    }
    checkPrepared({ rows, empty, skipped })
  }
  await writeWhole(path, lines())
  return { rows, empty, skipped }
}

function checkPrepared({ rows, empty, skipped }: Prepared): void {
  if (rows === 0) throw new Failure('the table has columns, but no rows')
  if (rows === empty)
    throw new Failure('every row is empty in the columns of the prompt; there is nothing to ask')
  const [first] = skipped
  const tried = rows - empty
  if (first === undefined || (skipped.size < tried && skipped.size <= SKIPPED_MAX)) return
  throw new Failure(
    `no request can be made of ${skipped.size === tried ? 'any' : `more than ${SKIPPED_MAX}`} row; row ${first[0]}: ${first[1]}`,
  )
}
