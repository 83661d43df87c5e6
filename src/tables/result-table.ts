// The results of a batch as a table of their own, with what each line used and cost.
import Type from 'typebox'
import { Compile } from 'typebox/compile'
import type { AnswerColumns, ResultRow } from './answer-cells.ts'
import type { Cell, Column, TableWriter } from './table.ts'

const USAGE: readonly Column[] = [
  { name: 'input_tokens', type: 'integer' },
  { name: 'output_tokens', type: 'integer' },
  { name: 'cost_usd', type: 'number' },
]

const Count = Type.Optional(Type.Number())
const used = Compile(
  Type.Object({
    usage: Type.Object({
      prompt_tokens: Count,
      completion_tokens: Count,
      input_tokens: Count,
      output_tokens: Count,
      cost_usd: Count,
    }),
  }),
)

export interface WrittenRows {
  rows: number
  /** Rows without an answer. */
  failed: number
}

export function resultColumns(answers: AnswerColumns): Column[] {
  return [{ name: 'custom_id', type: 'string' }, ...answers.columns, ...USAGE]
}

/** `writer` has the columns of `resultColumns`. */
export async function writeResults(
  results: AsyncIterable<ResultRow>,
  answers: AnswerColumns,
  writer: TableWriter,
): Promise<WrittenRows> {
  const written: WrittenRows = { rows: 0, failed: 0 }
  try {
    for await (const result of results) {
      const answer = answers.cells(result)
      written.rows++
      if (answer.at(-1) !== null) written.failed++
      await writer.write({ cells: [result.custom_id, ...answer, ...usageCells(result)] })
    }
    await writer.end()
    return written
  } catch (error) {
    await writer.abort()
    throw error
  }
}

function usageCells({ response }: ResultRow): Cell[] {
  const body: unknown = response?.body
  if (!used.Check(body)) return [null, null, null]
  const { usage } = body
  return [
    usage.prompt_tokens ?? usage.input_tokens ?? null,
    usage.completion_tokens ?? usage.output_tokens ?? null,
    usage.cost_usd ?? null,
  ]
}
