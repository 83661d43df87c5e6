// Failed lines are not retried in place: they are collected from the error file by custom_id and sent as a new
// batch. Here two lines name a model that does not exist; the second batch names one that does.
// `npx offpeak retry BATCH` does the same from a shell, with the lines unchanged.
//
//   node examples/retry-failures.ts
import { type Line, runBatch } from './run-batch.ts'

const lines: Line[] = ['sim-1', 'sim-2', 'sim-1', 'sim-2'].map((model, i) => ({
  custom_id: `line-${i + 1}`,
  body: { model, messages: [{ role: 'user', content: `Count to ${i + 1}.` }], max_tokens: 16 },
}))

const first = await runBatch(lines)
console.log(`first batch: ${first.output.length} answered, ${first.errors.length} failed`)
for (const { custom_id, error } of first.errors) console.log(`  ${custom_id}: ${error?.code}`)

const failed = new Set(first.errors.map(({ custom_id }) => custom_id))
const second = await runBatch(
  lines
    .filter(({ custom_id }) => failed.has(custom_id))
    .map((line) => ({ ...line, body: { ...line.body, model: 'sim-1' } })),
)
console.log(`second batch: ${second.output.length} answered, ${second.errors.length} failed`)
