// Downloads both result files of a batch; while the batch runs, the lines that are finished so far.
import { appendFile, writeFile } from 'node:fs/promises'
import { isTerminal } from '../../domain/batch.ts'
import type { Clock } from '../../domain/clock.ts'
import type { BatchObject } from '../../wire/batch.ts'
import type { ApiClient } from './client.ts'
import { download } from './download.ts'
import { followResults } from './follow-results.ts'
import type { Pace } from './poll.ts'

export interface ResultPaths {
  output: string
  errors: string
}

export interface DownloadOptions {
  pace: Pace
  clock: Clock
  signal?: AbortSignal | undefined
  onBytes?: (written: number) => void
}

export async function downloadResults(
  client: ApiClient,
  batch: BatchObject,
  { output, errors }: ResultPaths,
  { pace, clock, signal, onBytes }: DownloadOptions,
): Promise<void> {
  if (isTerminal(batch.status)) {
    await download(client, batch.output_file_id, output, signal, onBytes)
    await download(client, batch.error_file_id, errors, signal, onBytes)
    return
  }
  for (const [part, file] of [['output', output] as const, ['error', errors] as const]) {
    await writeFile(file, '')
    const write = (lines: Buffer): Promise<void> => appendFile(file, lines)
    await followResults(client, `/v1/batches/${encodeURIComponent(batch.id)}`, {
      part,
      follow: false,
      write,
      pace,
      clock,
      signal,
    })
  }
}
