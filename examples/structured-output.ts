// Answers that follow a JSON Schema. `supports.structured_output` of the model says whether its server enforces
// the schema; where it does not, an answer may fail to parse, so check it.
//
//   node examples/structured-output.ts
import { runBatch } from './run-batch.ts'

const reviews = ['Arrived broken, but the refund was quick.', 'Does what it says.', 'Never again.']

const schema = {
  type: 'object',
  properties: {
    sentiment: { type: 'string', enum: ['positive', 'neutral', 'negative'] },
    stars: { type: 'integer', minimum: 1, maximum: 5 },
  },
  required: ['sentiment', 'stars'],
  additionalProperties: false,
}

const { output } = await runBatch(
  reviews.map((review, i) => ({
    custom_id: `review-${i + 1}`,
    body: {
      model: 'sim-1',
      messages: [{ role: 'user', content: `Rate this review: ${review}` }],
      response_format: { type: 'json_schema', json_schema: { name: 'rating', strict: true, schema } },
    },
  })),
)

for (const { custom_id, response } of output) {
  const { sentiment, stars } = JSON.parse(response?.body.choices[0]?.message.content ?? '')
  console.log(`${custom_id}: ${sentiment}, ${stars} of 5`)
}
