// Makes the request lines of a table in a process of its own (row-lines-process.ts), which is killed when it takes too
// much memory or makes no progress for long.
import { systemClock } from '../domain/clock.ts'
import { forkConfined } from './confined-process.ts'
import type { FromRowLines, TableOrder } from './row-lines-process.ts'
import { TableError } from './table.ts'
import type { TableSource } from './table-bytes.ts'

interface RowLinesLimits {
  heapMib: number
  /** The memory of the process in all, in MiB: the bytes of a Parquet file are not in its heap. */
  memoryMib: number
  /** The largest slice in bytes that is read: the column of a Parquet row group is one slice. */
  sliceBytes: number
  /** The time without output after which the process is killed, */
  silentMs: number
  /** and the total time for which its reader waits. */
  totalMs: number
}

const LIMITS: RowLinesLimits = {
  // The process and its worker have to fit into the 512 MiB that deploy/helm/ gives a worker.
  heapMib: 96,
  memoryMib: 168,
  sliceBytes: 64 * 1024 * 1024,
  silentMs: 60_000,
  totalMs: 300_000,
}

/** Makes the request lines of a table. Throws TableError, errors of `source`, and the reason of an abort. */
export async function* rowLines(
  { name, byteLength, slice }: TableSource,
  asked: Pick<TableOrder, 'asking' | 'delimiter' | 'limit'>,
  limits: Partial<RowLinesLimits> = {},
  signal?: AbortSignal,
): AsyncGenerator<Buffer> {
  const { heapMib, memoryMib, sliceBytes, silentMs, totalMs } = { ...LIMITS, ...limits }
  const child = forkConfined('row-lines-process', { heapMib, stdout: true })
  /** Slices are sent one at a time: each takes memory here. */
  let given = Promise.resolve()
  const ended = Promise.withResolvers<string | null>()
  let failure: unknown
  const fail = (error: unknown): void => {
    failure ??= error
    child.kill('SIGKILL')
  }
  const giveSlice = async (number: number, start: number, end: number): Promise<void> => {
    const bytes = new Uint8Array(await slice(start, end))
    await new Promise<void>((resolve) => {
      if (child.connected) child.send({ slice: number, bytes }, () => resolve())
      else resolve()
    })
  }
  child.on('message', (message: FromRowLines) => {
    if ('failed' in message) {
      ended.resolve(message.failed)
      if (message.failed !== null) child.kill('SIGKILL')
    } else given = given.then(() => giveSlice(message.slice, message.start, message.end)).catch(fail)
  })
  child.once('error', fail)
  child.once('close', () =>
    ended.resolve(
      `${name} cannot be read within ${heapMib} MiB: its rows, or what is asked about them, are too large`,
    ),
  )
  child.send({ name, byteLength, memoryBytes: memoryMib * 1024 ** 2, sliceBytes, ...asked })
  let cancel = (): void => {}
  let leftMs = totalMs
  let since = 0
  const expectBytes = (): void => {
    since = systemClock.steady()
    cancel = systemClock.after(Math.min(silentMs, leftMs), () =>
      fail(
        new TableError(
          leftMs < silentMs
            ? `${name} takes more than ${totalMs / 1000} s to read; ask about fewer rows at once`
            : `no request of ${name} was made for ${silentMs / 1000} s`,
        ),
      ),
    )
  }
  const leave = (): void => fail(signal?.reason)
  signal?.addEventListener('abort', leave)
  try {
    expectBytes()
    const pieces: AsyncIterable<Buffer> = child.stdout!
    for await (const piece of pieces) {
      cancel()
      leftMs = Math.max(0, leftMs - (systemClock.steady() - since))
      yield piece
      expectBytes()
    }
    const failed = await ended.promise
    if (failure) throw failure
    if (failed !== null) throw new TableError(failed)
  } finally {
    cancel()
    signal?.removeEventListener('abort', leave)
    child.kill('SIGKILL')
  }
}
