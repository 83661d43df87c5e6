// Makes the lines of a batch that sends a prompt for each row of an uploaded table.
import { DEFAULT_ENDPOINT } from '../domain/endpoint.ts'
import { ApiError, invalidParam } from '../domain/errors.ts'
import { sentence } from '../domain/text.ts'
import type { ReadPorts } from '../results/finished-lines.ts'
import { readBlobRow } from '../store/blobs.ts'
import { readFile } from '../store/files.ts'
import { readRow } from '../store/rows.ts'
import type { FileRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import { answerSchema, FIELDS_MAX } from '../tables/answer-cells.ts'
import { rowLines } from '../tables/row-lines.ts'
import { QUESTION_FIELDS, TableError, withoutEnding } from '../tables/table.ts'
import type { BatchTable } from '../wire/batch.ts'

/** Checks the parameters that need no look at the table. Throws invalid_request. */
export function checkTable({ parameters, schema }: BatchTable, endpoint: string): void {
  if (endpoint !== DEFAULT_ENDPOINT)
    throw invalidParam('endpoint', `The rows of a table are asked about at \`${DEFAULT_ENDPOINT}\`.`)
  const own = QUESTION_FIELDS.find((name) => Object.hasOwn(parameters ?? {}, name))
  if (own !== undefined)
    throw invalidParam(
      'table.parameters',
      `\`table.parameters\` cannot have \`${own}\`: it is made of \`model\`, \`prompt\`, \`system\` and \`schema\`.`,
    )
  if (schema != null && answerSchema(schema) === null)
    throw invalidParam(
      'table.schema',
      `\`table.schema\` must be the schema of an object with 1 to ${FIELDS_MAX} \`properties\`.`,
    )
}

/** The table, and the name for the file of its lines. Throws file_not_found, file_not_processed and invalid_request. */
export async function readTable(
  db: Reader,
  project_id: string,
  file_id: string,
  now: number,
): Promise<{ file: FileRow; filename: string }> {
  const file = await readFile(db, project_id, file_id, now)
  if (!file) throw new ApiError('file_not_found', undefined, { param: 'input_file_id' })
  if (file.purpose !== 'table')
    throw invalidParam(
      'input_file_id',
      'The file is no table. `table` needs a file that was uploaded with the purpose "table".',
    )
  if (file.status !== 'processed')
    throw new ApiError('file_not_processed', file.status_details ?? undefined, { param: 'input_file_id' })
  return { file, filename: `${withoutEnding(file.filename)}.jsonl` }
}

/** The lines of a table's rows. Throws like readTable, and invalid_request for a row that makes no line. */
export async function* tableLines(
  { db, sealed, now }: ReadPorts,
  { project_id, file_id }: { project_id: string; file_id: string },
  table: BatchTable,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  const { file } = await readTable(db, project_id, file_id, now)
  const { id, filename, content_blob } = file
  const { model, prompt, system, schema, id_column, images, parameters, skip_empty, delimiter, limit } = table
  const blob = content_blob === null ? undefined : await readBlobRow(db, content_blob)
  if (!blob) throw new ApiError('file_not_found', undefined, { param: 'input_file_id' })
  const source = {
    name: filename,
    byteLength: blob.bytes,
    async slice(start: number, end = blob.bytes): Promise<ArrayBuffer> {
      return new Uint8Array(await sealed.readAll(project_id, blob, { start, end })).buffer
    },
  }
  const asking = {
    ...{ model, prompt, system: system ?? undefined, schema: answerSchema(schema) ?? undefined },
    ...{
      idColumn: id_column ?? undefined,
      images: images ?? undefined,
      parameters: parameters ?? undefined,
    },
    skipsEmpty: skip_empty ?? false,
  }
  try {
    const order = { asking, delimiter: delimiter ?? undefined, limit: limit ?? undefined }
    yield* rowLines(source, order, {}, signal)
  } catch (error) {
    if (error instanceof TableError) throw invalidParam('table', sentence(error.message))
    if ((await readRow(db, 'files', { id }))?.deleted_at == null) throw error
    throw new ApiError('file_not_found', 'The table was deleted while it was read.', {
      param: 'input_file_id',
    })
  }
}
