// Each example is run as its user runs it: a process of its own against a running service.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { TestService } from '../service.ts'

const run = promisify(execFile)
const ROOT = fileURLToPath(new URL('../..', import.meta.url))

const SAYS: Record<string, RegExp[]> = {
  'plain-batch': [/^question-1: \S/m, /^completed, 3 of 3 lines answered$/m],
  'structured-output': [/^review-3: (positive|neutral|negative), [1-5] of 5$/m],
  'tool-loop': [/^Lima asks for get_weather\(\{"city": ?"(Berlin|Lima|Osaka)"\}\)$/m, /^Osaka: \S/m],
  'spending-cap': [
    /^refused: .*Ask finance@example\.com for more\./m,
    /^completed: user:\d+ has spent 0\.0\d+ USD/m,
  ],
  'webhook-receiver': [/^batch\.completed: batch_\w+ for [\d.e-]+ USD$/m],
  'retry-failures': [
    /^first batch: 2 answered, 2 failed$/m,
    /^ {2}line-2: model_not_found$/m,
    /^second batch: 2 answered, 0 failed$/m,
  ],
}

const service = await TestService.start(`
models:
  - id: sim-1
    context_window: 131072
    max_output_tokens: 4096
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    supports: {structured_output: true, tools: true}
    upstreams: [{type: sim}]
webhooks: {allow_private_networks: true}
`)
test.after(() => service[Symbol.asyncDispose]())

for (const [example, patterns] of Object.entries(SAYS))
  test(`the example ${example} does what it says`, async () => {
    const { stdout } = await run(process.execPath, [`examples/${example}.ts`], {
      cwd: ROOT,
      env: { PATH: process.env.PATH, OFFPEAK_BASE_URL: service.url, OFFPEAK_API_KEY: service.key },
    })
    for (const pattern of patterns) assert.match(stdout, pattern)
  })
