// A tool loop of two rounds through a service that it starts for itself, with the simulator as the model: the
// model asks for a tool, the tool runs here, and a second batch carries its answers. Both rounds run under one
// entity and one conversation.
//
//   node examples/tool-loop.ts
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import OpenAI from 'openai'
import { readApiKey } from '../src/cli/connect.ts'
import { nextRound, readToolResults, readTurns } from '../src/cli/tool-round.ts'
import { serve } from '../src/compose/serve.ts'
import { loadConfig } from '../src/config/load.ts'

const CITIES = ['Berlin', 'Lima', 'Osaka']
const ABOUT = { entity: 'user:42', conversation: 'weather-today' }

const weather = {
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
}

const folder = await mkdtemp(join(tmpdir(), 'offpeak-tool-loop-'))
const at = (name: string): string => join(folder, name)
const config = loadConfig({ env: {}, cwd: folder, overrides: { data: 'data', port: 0, log_level: 'warn' } })
const service = await serve(config, { half: 'both' })
const client = new OpenAI({ baseURL: `${service.url}/v1`, apiKey: readApiKey(config) })

try {
  const first = CITIES.map((city) => ({
    custom_id: city,
    method: 'POST',
    url: '/v1/chat/completions',
    metadata: ABOUT,
    body: {
      model: 'sim-1',
      messages: [{ role: 'user', content: `What should I wear in ${city} today?` }],
      tools: [weather],
    },
  }))
  await writeFile(at('round-1.jsonl'), `${first.map((line) => JSON.stringify(line)).join('\n')}\n`)
  await runBatch('round-1')

  const turns = await readTurns(createReadStream(at('round-1-output.jsonl')))
  const calls = [...turns.values()].flatMap((turn) => turn.calls)
  const said = calls.map((call) => {
    console.log(`${call.custom_id} asks for ${call.name}(${call.arguments})`)
    const { custom_id, tool_call_id } = call
    return JSON.stringify({ custom_id, tool_call_id, content: { sky: 'clear', celsius: 21 } })
  })
  const results = await readToolResults(Readable.from([Buffer.from(said.join('\n'))]))
  const next = nextRound(createReadStream(at('round-1.jsonl')), turns, results)
  await pipeline(next, createWriteStream(at('round-2.jsonl')))
  await runBatch('round-2')

  for (const text of (await readFile(at('round-2-output.jsonl'), 'utf8')).trimEnd().split('\n')) {
    const line = JSON.parse(text)
    console.log(`${line.custom_id}: ${line.response.body.choices[0].message.content}`)
  }
} finally {
  await service.stop()
  await rm(folder, { recursive: true })
}

/** Runs NAME.jsonl as a batch, and leaves its answers in NAME-output.jsonl. */
async function runBatch(name: string): Promise<void> {
  const { id } = await client.files.create({ file: createReadStream(at(`${name}.jsonl`)), purpose: 'batch' })
  await client.files.waitForProcessing(id, { pollInterval: 50 })
  let batch = await client.batches.create({
    input_file_id: id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    metadata: ABOUT,
  })
  while (batch.status !== 'completed' && batch.status !== 'failed') {
    await new Promise((resolve) => setTimeout(resolve, 50))
    batch = await client.batches.retrieve(batch.id)
  }
  if (!batch.output_file_id) throw new Error(`${name} is ${batch.status} without an answer`)
  await writeFile(at(`${name}-output.jsonl`), await (await client.files.content(batch.output_file_id)).text())
}
