// GET /v1/batches/{batch_id}/results: the finished lines of a batch as JSONL, or as a table.
import { Type } from 'typebox'
import { isTerminal } from '../../domain/batch.ts'
import { invalidParam } from '../../domain/errors.ts'
import { placesInChunk } from '../../jsonl/chunk-lines.ts'
import { EVERYTHING, type Fetch, TO_END } from '../../lifecycle/fetched-results.ts'
import { type ReadPorts, readFinished, readResultRows } from '../../results/finished-lines.ts'
import { inOpenAiForm } from '../../results/openai-errors.ts'
import { chunksOf, startOf } from '../../store/chunks.ts'
import { readFile, readVisibleInput } from '../../store/files.ts'
import type { BatchRow } from '../../store/schema.ts'
import { answerColumns, formOfAnswers } from '../../tables/answer-cells.ts'
import { resultColumns, writeResults } from '../../tables/result-table.ts'
import { SchemaChecks } from '../../tables/schema-checks.ts'
import { ResultsQuery } from '../../wire/batch-line.ts'
import { type HeavyRead, whenSent } from '../response/long-calls.ts'
import { attachment } from '../response/send-error.ts'
import { TABLE_TYPES, type TableOrder, tablePieces } from '../response/table-stream.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { visibleBatch } from './batches.ts'

const LIMIT_DEFAULT = 1000

export function batchResultsRoute(app: App, { store, sealed, clock, reads }: RouteDependencies): void {
  const checks = new SchemaChecks()
  route(app, 'GET /v1/batches/:batch_id/results', {
    access: ['batches:read'],
    operation: 'getBatchResults',
    summary: 'Read the finished lines of a batch',
    description:
      'Result lines as they will stand in the output and error files, in the order of the input. ' +
      '`X-Next-After` is the `after` of the next call, `X-Has-More` whether there is more to read now, ' +
      '`X-Batch-Status` how the batch stood before it was read: once it has ended and nothing more is ' +
      'there, all has been read. A page holds about 8 MiB at most. With `format` the whole is a table instead.',
    answer: Type.String(),
    content_type: 'application/x-ndjson',
    errors: ['invalid_request', 'content_not_kept'],
    query: ResultsQuery.properties,
    async handler(request, { project_id, session_expires }, reply) {
      const { format = 'jsonl', spreadsheet = 'false', ...paging } = request.query
      const { after = 0, limit = LIMIT_DEFAULT, part = 'all', contiguous = 'false', lines } = paging
      const [param] = Object.keys(paging)
      if (format !== 'jsonl' && param !== undefined)
        throw invalidParam(param, `\`${param}\` pages JSONL; a table is read as a whole.`)
      const other = Object.keys(paging).find((name) => !['lines', 'limit'].includes(name))
      if (lines !== undefined && other !== undefined)
        throw invalidParam(other, `\`${other}\` pages all lines; with \`lines\` there are no others.`)
      const read = await reads.open(project_id, reply.raw)
      const ports = { db: store.read, sealed, now: clock.now() }
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      if (batch.retention !== null) await checkKept(ports, batch, part)
      const isEnded = isTerminal(batch.status)
      const sent = (fetch: Fetch): void => whenSent(request, reply, { store, clock }, batch, fetch)
      if (format !== 'jsonl') {
        reply.headers({
          'content-disposition': attachment(`${batch.id}.${format}`),
          'x-batch-status': batch.status,
        })
        const order = { format, spreadsheet: spreadsheet === 'true' }
        if (isEnded) sent(EVERYTHING)
        const table = readResultsTable({ ...ports, checks }, batch, order, read)
        return reply.type(TABLE_TYPES[format]).send(read.stream(table))
      }
      const only =
        lines &&
        new Set(
          lines
            .split(',')
            .map(Number)
            .sort((a, b) => a - b),
        )
      const order = { after, limit, part, contiguous: contiguous === 'true', only: only || undefined }
      const page = await read.turn(() => readFinished(ports, batch.id, order))
      // Results that a person sees in the console do not count as fetched.
      if ((isEnded || order.contiguous) && !only && session_expires === null)
        sent({ part, unit: 'lines', range: [after, isEnded && !page.hasMore ? TO_END : page.nextAfter] })
      reply.headers({
        'x-next-after': page.nextAfter,
        'x-has-more': String(page.hasMore),
        'x-batch-status': batch.status,
      })
      return reply
        .type('application/x-ndjson')
        .send(read.stream(request.compat === 'openai' ? inOpenAiForm(page.text) : page.text))
    },
  })
}

/** Throws content_not_kept where requested results have been destroyed. */
async function checkKept(
  { db, now }: ReadPorts,
  { project_id, output_file_id, error_file_id }: BatchRow,
  part: Fetch['part'],
): Promise<void> {
  if (part !== 'error' && output_file_id !== null) await readFile(db, project_id, output_file_id, now)
  if (part !== 'output' && error_file_id !== null) await readFile(db, project_id, error_file_id, now)
}

interface TablePorts extends ReadPorts {
  checks: SchemaChecks
}

/**
 * Streams results as a table with the columns of `formOfAnswers`. Yields after some rows, perhaps an empty piece.
 * Checks end with the read.
 */
export async function* readResultsTable(
  { checks, ...ports }: TablePorts,
  batch: BatchRow,
  order: TableOrder,
  read: Pick<HeavyRead, 'closed' | 'outside'>,
): AsyncGenerator<Buffer> {
  const schema = formOfAnswers(batch.endpoint, await readFirstLine(ports, batch))
  const check = schema && checks.begin(batch.project_id, schema.schema)
  const close = (): void => check?.close()
  read.closed.addEventListener('abort', close, { once: true })
  try {
    read.closed.throwIfAborted()
    const answers = answerColumns(
      schema,
      '',
      check && { verdicts: (answers) => read.outside(() => check.verdicts(answers)) },
    )
    yield* tablePieces(resultColumns(answers), order, (writer) =>
      writeResults(readResultRows(ports, batch), answers, writer),
    )
  } finally {
    read.closed.removeEventListener('abort', close)
    close()
  }
}

/** Reads the first line of the input; null once it was deleted. */
async function readFirstLine({ db, sealed, now }: ReadPorts, batch: BatchRow): Promise<Buffer | null> {
  const content = await readVisibleInput(db, batch, now)
  const { value: chunk } = await chunksOf(db, batch.id).next()
  if (!content || !chunk) return null
  const range = { start: chunk.byte_start, end: chunk.byte_end }
  let begun = Buffer.alloc(0)
  for await (const piece of sealed.read(content.project_id, content, range)) {
    begun = Buffer.concat([begun, piece])
    for (const { start, end } of placesInChunk(begun, { first_line: startOf(chunk) }))
      if (end < begun.length || begun.length === range.end - range.start) return begun.subarray(start, end)
  }
  return null
}
