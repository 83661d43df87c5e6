// A batch of three questions: every line ends in exactly one of the two files, matched by its custom_id.
//
//   node examples/plain-batch.ts
import { runBatch } from './run-batch.ts'

const questions = ['What is a lease?', 'What is a ledger?', 'What is a queue?']

const { batch, output, errors } = await runBatch(
  questions.map((content, i) => ({
    custom_id: `question-${i + 1}`,
    body: { model: 'sim-1', messages: [{ role: 'user', content }], max_tokens: 40 },
  })),
  { entity: 'user:42' },
)

for (const { custom_id, response } of output)
  console.log(`${custom_id}: ${response?.body.choices[0]?.message.content}`)
for (const { custom_id, error } of errors) console.log(`${custom_id} failed: ${error?.message}`)
console.log(
  `${batch.status}, ${batch.request_counts?.completed} of ${batch.request_counts?.total} lines answered`,
)
