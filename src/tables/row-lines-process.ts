// The process that makes the request lines of a caller's table, which may contain anything and take any time and
// memory. So the process has a small heap, its parent can kill it, and it gets the bytes of the table from its parent,
// slice by slice. The lines go to standard output.
import { once } from 'node:events'
import { messageOf } from '../domain/errors.ts'
import { openTable } from './open-table.ts'
import { type Asking, type Prepared, Question } from './row-requests.ts'
import { RowError, TableError } from './table.ts'

export interface TableOrder {
  /** The name of the table, whose ending gives the format. */
  name: string
  byteLength: number
  asking: Omit<Asking, 'imageUrl'>
  delimiter?: string | undefined
  /** The memory in bytes that the process may take in all. */
  memoryBytes: number
  /** The largest slice of the table in bytes that is read at once. */
  sliceBytes: number
  /** The number of the table's first rows that are read; absent: all. */
  limit?: number | undefined
}

type ToRowLines = TableOrder | { slice: number; bytes: Uint8Array }

/** A message to the parent. `slice`: the number of a wanted slice. `failed`: the table's error; null: all written. */
export type FromRowLines = { slice: number; start: number; end: number } | { failed: string | null }

const NAMES = {
  prompt: '`table.prompt`',
  system: '`table.system`',
  images: '`table.images`',
  idColumn: '`table.id_column`',
}

const SLICE_PIECE_BYTES = 2 * 1024 * 1024

const waiting = new Map<number, (bytes: Uint8Array) => void>()
let slices = 0

process.on('message', (message: ToRowLines) => {
  if ('slice' in message) {
    waiting.get(message.slice)?.(message.bytes)
    waiting.delete(message.slice)
  } else void writeLines(message).then((failed) => send({ failed }))
})
process.once('disconnect', () => process.exit())
// Only the parent process ends this one.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})

function send(message: FromRowLines): void {
  process.send?.(message)
}

/** Requests a slice of the table; its bytes come in pieces, so that the parent has few in memory. */
async function slice(name: string, start: number, end: number, bytesMax: number): Promise<ArrayBuffer> {
  if (end - start > bytesMax)
    throw new TableError(
      `${name} has ${Math.ceil((end - start) / 1024 ** 2)} MiB of a column in one piece, more than ${bytesMax / 1024 ** 2}; write it with smaller row groups`,
    )
  const whole = new Uint8Array(end - start)
  for (let at = start; at < end; at += SLICE_PIECE_BYTES) {
    const { promise, resolve } = Promise.withResolvers<Uint8Array>()
    const number = slices++
    waiting.set(number, resolve)
    send({ slice: number, start: at, end: Math.min(end, at + SLICE_PIECE_BYTES) })
    whole.set(await promise, at - start)
  }
  return whole.buffer
}

async function writeLines({
  name,
  byteLength,
  asking,
  delimiter,
  limit,
  memoryBytes,
  sliceBytes,
}: TableOrder): Promise<string | null> {
  const prepared: Prepared = { rows: 0, empty: 0, skipped: new Map() }
  const source = {
    name,
    byteLength,
    slice: (start: number, end = byteLength) => slice(name, start, end, sliceBytes),
  }
  const imageUrl = async (place: string): Promise<string> => {
    throw new RowError(`the image ${place} is no address; the service reads no files`)
  }
  try {
    const table = await openTable(source, { delimiter, memoryBytes })
    const question = new Question(table, name, { ...asking, imageUrl }, NAMES)
    for await (const line of question.lines(table, prepared, limit)) {
      refuseSkipped(prepared)
      if (!process.stdout.write(line)) await once(process.stdout, 'drain')
    }
    refuseSkipped(prepared)
    process.stdout.end()
    return null
  } catch (error) {
    const at = prepared.rows === 0 ? '' : `, row ${prepared.rows}`
    if (error instanceof TableError) return error.message
    // V8 throws a RangeError for texts that are too long, and for deep nesting.
    if (error instanceof RangeError) return `${name}${at}: its request is too large, or nested too deeply`
    return `${name}${at}: ${messageOf(error)}`
  }
}

/** Throws for a row without a request, since no table of answers can report it here. */
function refuseSkipped({ skipped }: Prepared): void {
  const [first] = skipped
  if (first !== undefined) throw new TableError(`row ${first[0]}: ${first[1]}`)
}
