// ask: asks one question and prints the answer, by a batch of one line in one call.
import { text } from 'node:stream/consumers'
import type { Command } from 'commander'
import { isTerminal } from '../../domain/batch.ts'
import { sleep } from '../../domain/clock.ts'
import { DEFAULT_ENDPOINT } from '../../domain/endpoint.ts'
import { answerColumns, parseResultRow } from '../../tables/answer-cells.ts'
import { BatchObject } from '../../wire/batch.ts'
import { checkModel, windowFor } from '../client/check-order.ts'
import { withApi } from '../client/connect.ts'
import { createOnce } from '../client/create-once.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { EXIT_LINES_FAILED, Failure } from '../terminal/failure.ts'
import { examples, jsonCommand, WINDOW_HELP } from '../terminal/option-values.ts'
import { printJson, type Terminal, writeData, writeLine } from '../terminal/terminal.ts'

interface AskFlags extends JsonFlags {
  model: string
  window?: string
}

/** The wait of one call, shorter than the client's timeout. */
const WAIT = '30s'
/** The pause in ms between calls: a service with many waiting calls answers at once. */
const BETWEEN_WAITS_MS = 1_000

export function addAsk(program: Command, shell: Shell): void {
  examples(
    jsonCommand(program, 'ask', 'ask a model one question')
      .argument('[question]', 'the question; without it, standard input')
      .requiredOption('--model <id>', 'the model that answers')
      .option('--window <duration>', WINDOW_HELP)
      .action((question: string | undefined, flags: AskFlags) => ask(shell, question, flags)),
    `offpeak ask --model sim-1 'What is a batch?'`,
    'offpeak ask --model sim-1 < question.txt',
  )
}

async function ask(shell: Shell, question: string | undefined, flags: AskFlags): Promise<void> {
  const { clock, terminal } = shell
  const content = question ?? (await readQuestion(terminal))
  const signal = shell.interruption()
  await withApi(shell, flags, async (connection) => {
    const { client, embedded, answer } = connection
    const { model } = flags
    await checkModel(client, { model, endpoint: DEFAULT_ENDPOINT })
    const completion_window = await windowFor(client, flags.window)
    const line = { custom_id: 'question', body: { model, messages: [{ role: 'user', content }] } }
    const order = { endpoint: DEFAULT_ENDPOINT, completion_window, requests: [line] }
    await createOnce(shell, connection, order, async (key) => {
      // A repeated call creates no second batch.
      const create = (wait: string) =>
        client.post(BatchObject, '/v1/batches', { ...order, wait }, { 'idempotency-key': key })
      // An embedded service sends only the lines of batches that it is told of.
      let batch = await create(embedded ? '0s' : WAIT)
      if (embedded) {
        answer(batch.id)
        batch = await create(WAIT)
      }
      while (!isTerminal(batch.status)) {
        const reason = batch.waiting_reason?.message ?? 'Its answer has not come yet.'
        writeLine(terminal.stderr, `${batch.id} is ${batch.status}. ${reason}`)
        await sleep(clock, BETWEEN_WAITS_MS, signal)
        batch = await create(WAIT)
      }
      await print(terminal, batch, flags)
    })
  })
}

async function print({ stdout }: Terminal, batch: BatchObject, { json }: AskFlags): Promise<void> {
  const [result] = batch.results ?? []
  const row = result && parseResultRow(Buffer.from(JSON.stringify(result)))
  if (!row) {
    const problem = batch.errors?.data[0]?.message ?? `see "offpeak batches results ${batch.id}"`
    throw new Failure(`${batch.id} is ${batch.status}, without an answer: ${problem}`, EXIT_LINES_FAILED)
  }
  const [[answer, error] = []] = await answerColumns(undefined, '').cells([row])
  if (json) printJson(stdout, result)
  else if (error === null) await writeData(stdout, [Buffer.from(`${answer}\n`)])
  if (error !== null) throw new Failure(String(error), EXIT_LINES_FAILED)
}

async function readQuestion({ stdin }: Terminal): Promise<string> {
  const question = stdin === undefined || stdin.isTTY ? '' : (await text(stdin)).trim()
  if (question !== '') return question
  throw new Failure('there is no question; write it behind the command, or send it to its standard input')
}
