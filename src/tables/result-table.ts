// Makes a table of the results of a batch, with what each line used and cost.
import Type from 'typebox'
import { Compile } from 'typebox/compile'
import { type AnswerColumns, type ResultRow, withCells } from './answer-cells.ts'
import type { Cell, Column, TableWriter } from './table.ts'

const USAGE: readonly Column[] = [
  { name: 'input_tokens', type: 'integer' },
  { name: 'output_tokens', type: 'integer' },
  { name: 'cost_usd', type: 'number' },
]

const Count = Type.Optional(Type.Number())
const CountOrNull = Type.Optional(Type.Union([Type.Number(), Type.Null()]))
const used = Compile(
  Type.Object({
    usage: Type.Object({
      prompt_tokens: Count,
      completion_tokens: Count,
      input_tokens: Count,
      output_tokens: Count,
      cache_read_input_tokens: CountOrNull,
      cache_creation_input_tokens: CountOrNull,
      cost_usd: Count,
    }),
  }),
)

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
  if (!used.Check(body)) return [null, null, null]
  const { usage } = body
  const { cache_read_input_tokens: read, cache_creation_input_tokens: written } = usage
  const input = usage.prompt_tokens ?? usage.input_tokens
  return [
    input === undefined ? null : input + (read ?? 0) + (written ?? 0),
    usage.completion_tokens ?? usage.output_tokens ?? null,
    usage.cost_usd ?? null,
  ]
}
