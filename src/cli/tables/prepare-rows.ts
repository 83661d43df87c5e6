// Makes the file of a batch's request lines from the rows of a table. A row of which none can be made is skipped, and its
// error goes into the table of answers.
import { readFile } from 'node:fs/promises'
import { dirname, extname, resolve } from 'node:path'
import type { Prepared, Question } from '../../tables/row-requests.ts'
import { RowError, type TableReader } from '../../tables/table.ts'
import { Interrupted } from '../terminal/failure.ts'
import { writeWhole } from './open-table.ts'

interface PrepareOptions {
  /** At most this many rows, from the first; all if not given. */
  limit?: number | undefined
  signal: AbortSignal
  onRow(rows: number): void
}

export async function prepareRows(
  table: TableReader,
  question: Question,
  path: string,
  { limit, signal, onRow }: PrepareOptions,
): Promise<Prepared> {
  const prepared: Prepared = { rows: 0, empty: 0, skipped: new Map() }
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

/** Reads the image at a path from the folder of the table. Throws RowError. */
export function imageReader(table: string): (place: string) => Promise<string> {
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
