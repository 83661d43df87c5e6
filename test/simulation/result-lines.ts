// The result lines of a batch in the order of its files: chunk by chunk.
import { readBlobRow } from '../../src/store/blobs.ts'
import { listSealed } from '../../src/store/chunks.ts'
import type { BatchRow } from '../../src/store/schema.ts'
import type { SimulatedRun } from './run.ts'

export async function resultLines(
  run: Pick<SimulatedRun, 'store' | 'sealed'>,
  batch: Pick<BatchRow, 'id'>,
): Promise<{ outputs: string[]; errors: string[] }> {
  const outputs: string[] = []
  const errors: string[] = []
  for (const chunk of await listSealed(run.store.read, batch.id, 0, 1_000)) {
    outputs.push(...(await lines(run, chunk.output_blob)))
    errors.push(...(await lines(run, chunk.error_blob)))
  }
  return { outputs, errors }
}

async function lines(
  { store, sealed }: Pick<SimulatedRun, 'store' | 'sealed'>,
  key: string | null,
): Promise<string[]> {
  if (key === null) return []
  const row = await readBlobRow(store.read, key)
  if (!row) throw new Error(`blob ${key} does not exist`)
  return String(await sealed.readAll(row.project_id, row))
    .split('\n')
    .slice(0, -1)
}
