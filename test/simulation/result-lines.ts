// The result lines of a batch, read as its files are, and its audit records, chunk by chunk.
import { buffer } from 'node:stream/consumers'
import { readContent } from '../../src/results/read-content.ts'
import { readBlobRow } from '../../src/store/blobs.ts'
import { chunksOf } from '../../src/store/chunks.ts'
import type { BatchRow } from '../../src/store/schema.ts'
import type { SimulatedRun } from './run.ts'

export async function resultLines(
  run: Pick<SimulatedRun, 'store' | 'sealed'>,
  batch: Pick<BatchRow, 'id'>,
): Promise<{ outputs: string[]; errors: string[] }> {
  const bytes = { output: 0, error: 0 }
  let project_id = ''
  for await (const chunk of chunksOf(run.store.read, batch.id)) {
    project_id = chunk.project_id
    bytes.output += chunk.output_bytes
    bytes.error += chunk.error_bytes
  }
  const read = async (part: 'output' | 'error'): Promise<string[]> => {
    const file = { id: part, project_id, content_blob: null, batch_id: batch.id, part, bytes: bytes[part] }
    const range = { start: 0, end: file.bytes }
    const content = await buffer(readContent({ db: run.store.read, sealed: run.sealed }, file, range))
    return String(content).split('\n').slice(0, -1)
  }
  return { outputs: await read('output'), errors: await read('error') }
}

export interface AuditRecord {
  custom_id: string
  cost_usd?: number
  error: { code: string } | null
  attempts: object[]
  attempts_omitted?: number
  /** Of all answers to the line. */
  usage: { total_tokens: number } | null
}

export async function auditRecords(
  { store, sealed }: Pick<SimulatedRun, 'store' | 'sealed'>,
  { id }: Pick<BatchRow, 'id'>,
): Promise<AuditRecord[]> {
  const records: AuditRecord[] = []
  for await (const { audit_blob } of chunksOf(store.read, id))
    for (const text of await lines({ store, sealed }, audit_blob)) records.push(JSON.parse(text))
  return records
}

async function lines(
  { store, sealed }: Pick<SimulatedRun, 'store' | 'sealed'>,
  key: string | null,
): Promise<string[]> {
  if (key === null) return []
  const row = await readBlobRow(store.read, key)
  if (!row) throw new Error(`blob ${key} does not exist`)
  // After the last line break there is nothing, or the index.
  return String(await sealed.readAll(row.project_id, row))
    .split('\n')
    .slice(0, -1)
}
