// A tool loop of two rounds: the model asks for a tool, the tool runs here, and a second batch carries the
// answers of the tool. Both rounds have the same entity and conversation, so usage and audit records belong together.
//
//   node examples/tool-loop.ts
import type OpenAI from 'openai'
import { type Line, runBatch } from './run-batch.ts'

const CITIES = ['Berlin', 'Lima', 'Osaka']
const METADATA = { entity: 'user:42', conversation: 'weather-today' }

const tools: OpenAI.ChatCompletionTool[] = [
  {
    type: 'function',
    function: {
      name: 'get_weather',
      description: 'The weather in a city.',
      parameters: {
        type: 'object',
        properties: { city: { type: 'string', enum: CITIES } },
        required: ['city'],
        additionalProperties: false,
      },
    },
  },
]

const lineOf = (city: string, messages: OpenAI.ChatCompletionMessageParam[]): Line => ({
  custom_id: city,
  body: { model: 'sim-1', messages, tools },
})
const asked = new Map<string, OpenAI.ChatCompletionMessageParam[]>(
  CITIES.map((city) => [city, [{ role: 'user', content: `What should I wear in ${city} today?` }]]),
)

const first = await runBatch(
  [...asked].map(([city, messages]) => lineOf(city, messages)),
  METADATA,
)

const next: Line[] = []
for (const { custom_id, response } of first.output) {
  const message = response?.body.choices[0]?.message
  if (!message?.tool_calls) continue
  const answers = message.tool_calls.map((call): OpenAI.ChatCompletionMessageParam => {
    if (call.type === 'function')
      console.log(`${custom_id} asks for ${call.function.name}(${call.function.arguments})`)
    return { role: 'tool', tool_call_id: call.id, content: JSON.stringify({ sky: 'clear', celsius: 21 }) }
  })
  next.push(lineOf(custom_id, [...(asked.get(custom_id) ?? []), message, ...answers]))
}

const second = await runBatch(next, METADATA)
for (const { custom_id, response } of second.output)
  console.log(`${custom_id}: ${response?.body.choices[0]?.message.content}`)
