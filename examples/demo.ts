// npm run demo: starts a service, runs a real file of 1,319 questions through it, shows what came out, and
// says how to go on. The answers come from the built-in simulator, so nothing else has to be installed.
import { existsSync } from 'node:fs'
import { mkdir, open, rm, writeFile } from 'node:fs/promises'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ApiClient } from '../src/cli/client/client.ts'
import { embed, readApiKey } from '../src/cli/client/connect.ts'
import { LOCAL_PACE } from '../src/cli/client/watch-batch.ts'
import { type RunReport, runBatch, runStatePath } from '../src/cli/commands/run-batch.ts'
import { failureText } from '../src/cli/terminal/failure.ts'
import { progressView } from '../src/cli/terminal/progress-view.ts'
import { counted, humanDuration, humanUsd, paintFor, writeLine } from '../src/cli/terminal/terminal.ts'
import { serve } from '../src/compose/serve.ts'
import { loadConfig } from '../src/config/load.ts'
import { systemClock } from '../src/domain/clock.ts'

const root = fileURLToPath(new URL('..', import.meta.url))
const folder = join(root, 'demo-output')
/** Shows that a folder is the demo's own, to be thrown away. */
const mark = join(folder, '.made-by-the-demo')
const answers = join(folder, 'answers.jsonl')
const errors = join(folder, 'errors.jsonl')

const paint = paintFor(process.stdout)

try {
  await freshFolder()
  report(await answerTheQuestions())
  await showAnswers(3)
  sayHowToGoOn()
} catch (error) {
  console.error(failureText(error, true))
  process.exitCode = 1
}

async function freshFolder(): Promise<void> {
  if (existsSync(folder) && !existsSync(mark)) {
    throw new Error('demo-output/ is there already and was not made by the demo; move it away')
  }
  await rm(folder, { recursive: true, force: true })
  await mkdir(folder)
  await writeFile(mark, '')
}

/** What `offpeak run examples/gsm8k.jsonl` does, with a data folder of its own. */
async function answerTheQuestions(): Promise<RunReport> {
  const config = loadConfig({ env: {}, cwd: folder, overrides: { data: 'data' } })
  const service = await embed({ serve }, config, {})
  const client = new ApiClient({
    baseUrl: service.url,
    apiKey: readApiKey(config),
    clock: systemClock,
  })
  const view = progressView(process.stderr, systemClock)
  const watch = { view, pace: LOCAL_PACE, clock: systemClock, signal: new AbortController().signal }
  try {
    return await runBatch(
      { client, watch, embedded: true, answer: service.answer, options: '' },
      {
        input: join(root, 'examples/gsm8k.jsonl'),
        output: answers,
        errors,
        state: runStatePath(answers),
        target: config.data_dir,
        window: '24h',
        metadata: { entity: 'user:demo' },
      },
    )
  } finally {
    view.stop()
    await client.close()
    await service.stop()
  }
}

function report({ batch, durationMs }: RunReport): void {
  const { completed, failed } = batch.request_counts
  console.log(
    `\n${counted(completed, 'line')} answered, ${failed} failed, ${humanUsd(batch.cost_usd)}, in ${humanDuration(durationMs)}.`,
  )
  console.log(`  answers  ${relative(process.cwd(), answers)}`)
  console.log(`  errors   ${relative(process.cwd(), errors)}${failed === 0 ? ' (empty)' : ''}`)
}

async function showAnswers(count: number): Promise<void> {
  console.log()
  writeLine(
    process.stdout,
    paint('bold', 'The first answers (by the simulator, so they are only shaped like answers):'),
  )
  const file = await open(answers)
  let shown = 0
  for await (const line of file.readLines()) {
    const { custom_id, response }: Result = JSON.parse(line)
    const said = response.body.choices[0]?.message.content ?? ''
    writeLine(process.stdout, `  ${paint('cyan', custom_id)}  ${said.replace(/\s+/g, ' ').slice(0, 100)}`)
    if (++shown === count) break
  }
}

interface Result {
  custom_id: string
  response: { body: { choices: { message: { content: string | null } }[] } }
}

function sayHowToGoOn(): void {
  console.log(`
${paint('bold', 'A service that stays:')}
  npx offpeak serve

${paint('bold', 'Real answers, from any OpenAI-compatible server (vLLM, SGLang, llama.cpp, Ollama, …):')}
  npx offpeak serve --upstream http://127.0.0.1:8000/v1

${paint('bold', 'From your code, with the OpenAI SDK:')}
  const client = new OpenAI({ baseURL: 'http://127.0.0.1:8080/v1', apiKey })  // offpeak-data/api-key-openai
  const file = await client.files.create({ purpose: 'batch', file: fs.createReadStream('input.jsonl') })
  await client.batches.create({ input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' })
`)
}
