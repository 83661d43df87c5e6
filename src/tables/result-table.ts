// Makes a table of the results of a batch, with what each line used and cost.
import { isRecord } from '../domain/json-record.ts'
import { type AnswerColumns, type ResultRow, withCells } from './answer-cells.ts'
import type { Cell, Column, TableWriter } from './table.ts'

const USAGE: readonly Column[] = [
  { name: 'input_tokens', type: 'integer' },
  { name: 'output_tokens', type: 'integer' },
  { name: 'cost_usd', type: 'number' },
]

export interface WrittenRows {
  rows: number
  failed: number
}

export function resultColumns(answers: AnswerColumns): Column[] {
  return [{ name: 'custom_id', type: 'string' }, ...answers.columns, ...USAGE]
}

/** Writes results to `writer`, which has the columns of `resultColumns`. Yields the counts after each group of rows. */
export async function* writeResults(
  results: AsyncIterable<readonly ResultRow[]>,
  answers: AnswerColumns,
  writer: TableWriter,
): AsyncGenerator<WrittenRows> {
  const written: WrittenRows = { rows: 0, failed: 0 }
  let isWhole = false
  try {
    for await (const batch of withCells(results, answers)) {
      for (const { result, cells } of batch) {
        written.rows++
        if (cells.at(-1) !== null) written.failed++
        await writer.write({ cells: [result.custom_id, ...cells, ...usageCells(result)] })
      }
      yield written
    }
    await writer.end()
    isWhole = true
    yield written
  } finally {
    if (!isWhole) await writer.abort()
  }
}

function usageCells({ response }: ResultRow): Cell[] {
  const body: unknown = response?.body
  const usage = isRecord(body) && isRecord(body.usage) ? body.usage : {}
  const count = (name: string): number | null => {
    const value = usage[name]
    return typeof value === 'number' ? value : null
  }
  const input = count('prompt_tokens') ?? count('input_tokens')
  const cached = (count('cache_read_input_tokens') ?? 0) + (count('cache_creation_input_tokens') ?? 0)
  return [
    input === null ? null : input + cached,
    count('completion_tokens') ?? count('output_tokens'),
    count('cost_usd'),
  ]
}
