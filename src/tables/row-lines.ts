// Makes the request lines of a table in a process of its own (row-lines-process.ts), which is killed when it takes too
// much memory or makes no progress for long.
import { steadyClock } from '../domain/clock.ts'
import { forkConfined } from './confined-process.ts'
import type { FromRowLines, TableOrder } from './row-lines-process.ts'
import { TableError } from './table.ts'
import type { TableSource } from './table-bytes.ts'

interface RowLinesLimits {
  /** Heap of the process in MiB. */
  heapMib: number
  /** What the process takes in all, in MiB: the bytes of a Parquet file are not in its heap. */
  memoryMib: number
  /** A larger slice is not read: the column of a Parquet row group is one. */
  sliceBytes: number
  /** The process is ended when no byte has come for so long. */
  silentMs: number
}

const LIMITS: RowLinesLimits = {
  heapMib: 256,
  memoryMib: 768,
  sliceBytes: 64 * 1024 * 1024,
  silentMs: 60_000,
}

/** Throws a TableError, with what is wrong, and what reading `source` throws. */
export async function* rowLines(
  { name, byteLength, slice }: TableSource,
  asked: Pick<TableOrder, 'asking' | 'delimiter' | 'limit'>,
  limits: Partial<RowLinesLimits> = {},
): AsyncGenerator<Buffer> {
  const { heapMib, memoryMib, sliceBytes, silentMs } = { ...LIMITS, ...limits }
  const child = forkConfined('row-lines-process', { heapMib, stdout: true })
  const ended = Promise.withResolvers<string | null>()
  let failure: unknown
  const fail = (error: unknown): void => {
    failure ??= error
    child.kill('SIGKILL')
  }
  const giveSlice = async (number: number, start: number, end: number): Promise<void> => {
    if (end - start > sliceBytes)
      throw new TableError(
        `${name} has ${Math.ceil((end - start) / 1024 ** 2)} MiB of a column in one piece, more than ${sliceBytes / 1024 ** 2}; write it with smaller row groups`,
      )
    const bytes = new Uint8Array(await slice(start, end))
    if (child.connected) child.send({ slice: number, bytes }, () => {})
  }
  child.on('message', (message: FromRowLines) => {
    if ('failed' in message) {
      ended.resolve(message.failed)
      if (message.failed !== null) child.kill('SIGKILL')
    } else giveSlice(message.slice, message.start, message.end).catch(fail)
  })
  child.once('error', fail)
  child.once('close', () =>
    ended.resolve(
      `${name} cannot be read within ${heapMib} MiB: its rows, or what is asked about them, are too large`,
    ),
  )
  child.send({ name, byteLength, memoryBytes: memoryMib * 1024 ** 2, ...asked })
  let cancel = (): void => {}
  const expectBytes = (): void => {
    cancel()
    cancel = steadyClock.after(silentMs, () =>
      fail(new TableError(`no request of ${name} was made for ${silentMs / 1000} s`)),
    )
  }
  try {
    expectBytes()
    const pieces: AsyncIterable<Buffer> = child.stdout!
    for await (const piece of pieces) {
      cancel()
      yield piece
      expectBytes()
    }
    const failed = await ended.promise
    if (failure) throw failure
    if (failed !== null) throw new TableError(failed)
  } finally {
    cancel()
    child.kill('SIGKILL')
  }
}
