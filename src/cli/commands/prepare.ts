// prepare and next-round: make the input file of a batch without creating the batch, from a table, or from the answers of
// the round before in a tool loop.
import { createReadStream } from 'node:fs'
import { access } from 'node:fs/promises'
import type { Command } from 'commander'
import Type from 'typebox'
import { Value } from 'typebox/value'
import { parsedJson } from '../../domain/json-record.ts'
import { jsonLines, LINE_BREAK } from '../../jsonl/byte-lines.ts'
import { LineScanner } from '../../jsonl/line-scan.ts'
import { withoutEnding } from '../../tables/table.ts'
import { checkOutput, writeWhole } from '../output-file.ts'
import type { Shell } from '../shell.ts'
import { openTable } from '../tables/open-table.ts'
import { Failure } from '../terminal/failure.ts'
import { examples, withJson } from '../terminal/option-values.ts'
import { progressView } from '../terminal/progress-view.ts'
import { counted, printJson, writeData, writeLine } from '../terminal/terminal.ts'
import { askedOf, isTable, prepareRows, type TableFlags, tableTerms, withTable } from './table-question.ts'
import { showRows } from './table-run.ts'

interface PrepareFlags extends TableFlags {
  output?: string
  json?: boolean
}

export function addPrepare(program: Command, shell: Shell): void {
  const prepare = program
    .command('prepare')
    .description('make a JSONL file of requests from a table, one request for each row')
    .argument('<table>', 'CSV, TSV, JSONL or Parquet file')
    .option('-o, --output <file>', 'requests (default: TABLE.requests.jsonl)')
  examples(
    withTable(withJson(prepare)).action((input: string, flags: PrepareFlags) =>
      prepareTable(shell, input, flags),
    ),
    `offpeak prepare reviews.csv --model sim-1 --prompt 'Classify: {{text}}' -o requests.jsonl`,
    'offpeak run requests.jsonl',
    'offpeak results batch_01k0… --rows reviews.csv -o answered.csv',
  )
}

async function prepareTable(shell: Shell, input: string, flags: PrepareFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  await access(input)
  // Rejects a table without a prompt, and a file that already has requests.
  await isTable(input, flags)
  const output = flags.output ?? `${withoutEnding(input)}.requests.jsonl`
  await checkOutput(output, { 'the input': input }, 'jsonl')
  const signal = shell.interruption()
  const view = progressView(stderr, shell.clock)
  try {
    const terms = await tableTerms(flags)
    const table = await openTable(input, terms)
    const { question } = await askedOf(input, table, terms)
    const { rows, empty, skipped } = await prepareRows(table, question, output, {
      limit: flags.limit,
      signal,
      onRow: showRows(view),
    })
    view.stop()
    const requests = rows - empty - skipped.size
    if (flags.json) return printJson(stdout, { output, requests, empty, skipped: skipped.size })
    for (const [row, reason] of [...skipped].slice(0, SHOWN_MAX))
      writeLine(stderr, `row ${row} is left out: ${reason}`)
    if (skipped.size > SHOWN_MAX)
      writeLine(stderr, `${counted(skipped.size - SHOWN_MAX, 'more row')} left out`)
    if (empty > 0) writeLine(stderr, `${counted(empty, 'empty row')} left out`)
    writeLine(stderr, `requests: ${output} (${counted(requests, 'line')})`)
  } finally {
    view.stop()
  }
}

const SHOWN_MAX = 10

interface NextRoundFlags {
  input?: string
  tools?: string
  output?: string
}

export function addNextRound(program: Command, shell: Shell): void {
  const { stdout, stderr } = shell.terminal
  const command = program
    .command('next-round')
    .description('make the input of the next round of a tool loop; without --tools, list the tool calls')
    .argument('<output>', 'the output file of the last batch')
    .option('--input <file>', 'the input file of the last batch')
    .option('--tools <file>', 'the results of the tools: JSONL with custom_id, tool_call_id and content')
    .option('-o, --output <file>', 'file for the next input (default: standard output)')
    .action(async (path: string, flags: NextRoundFlags) => {
      const turns = await readTurns(createReadStream(path))
      if (flags.tools === undefined || flags.input === undefined) {
        if (flags.tools !== undefined) command.error('error: --tools needs --input')
        for (const { calls } of turns.values()) for (const call of calls) printJson(stdout, call)
        return
      }
      const results = await readToolResults(createReadStream(flags.tools))
      const lines = nextRound(createReadStream(flags.input), turns, results)
      if (flags.output === undefined) await writeData(stdout, lines)
      else await writeWhole(flags.output, lines)
      writeLine(stderr, `offpeak: ${counted(turns.size, 'line')} for the next round`)
    })
  examples(
    command,
    'offpeak next-round out.jsonl > calls.jsonl',
    'offpeak next-round out.jsonl --input in.jsonl --tools answers.jsonl -o next.jsonl',
  )
}

// Makes the next round of a tool loop. A line whose answer has tool calls is sent again, byte for byte, with the
// assistant's message and the tool results at the end of its `messages`. custom_id, metadata and parameters stay the
// same, so all rounds have one entity and one conversation.

const Call = Type.Object({
  id: Type.String(),
  function: Type.Object({ name: Type.String(), arguments: Type.String() }),
})

/** An output line whose answer has tool calls. */
const AnswerLine = Type.Object({
  custom_id: Type.String(),
  response: Type.Object({
    body: Type.Object({
      choices: Type.Array(Type.Object({ message: Type.Object({ tool_calls: Type.Array(Call) }) })),
    }),
  }),
})

const ToolResult = Type.Object({
  custom_id: Type.String(),
  tool_call_id: Type.String(),
  /** The tool's result: a text unchanged, another value as JSON. */
  content: Type.Unknown(),
})

/** A tool call of a model; `arguments` is the model's JSON. */
interface ToolCall {
  custom_id: string
  tool_call_id: string
  name: string
  arguments: string
}

interface Turn {
  /** The message of the assistant that has tool calls, as JSON. */
  message: string
  calls: ToolCall[]
}

/** Parses the lines of a file. `what`: the file in the Failure for a line that is not JSON. */
async function* parsedLines(blocks: AsyncIterable<Buffer>, what: string) {
  for await (const { line, number } of jsonLines(blocks)) {
    const value = parsedJson(line.toString())
    if (value === undefined) throw new Failure(`${what}, line ${number}: not JSON; is the file whole?`)
    yield { value, number }
  }
}

/** Reads the tool calls of an output file, by custom_id. */
export async function readTurns(output: AsyncIterable<Buffer>): Promise<Map<string, Turn>> {
  const turns = new Map<string, Turn>()
  for await (const { value: answer } of parsedLines(output, 'the output')) {
    if (!Value.Check(AnswerLine, answer)) continue
    const message = answer.response.body.choices[0]?.message
    if (!message || message.tool_calls.length === 0) continue
    const { custom_id } = answer
    const content = 'content' in message ? message.content : null
    turns.set(custom_id, {
      message: JSON.stringify({ role: 'assistant', content, tool_calls: message.tool_calls }),
      calls: message.tool_calls.map((call) => ({ custom_id, tool_call_id: call.id, ...call.function })),
    })
  }
  return turns
}

/** Reads the tool results by custom_id and call. Throws a Failure that names the first invalid line. */
export async function readToolResults(
  results: AsyncIterable<Buffer>,
): Promise<Map<string, Map<string, string>>> {
  const found = new Map<string, Map<string, string>>()
  for await (const { value: result, number } of parsedLines(results, 'tool results')) {
    if (!Value.Check(ToolResult, result))
      throw new Failure(`tool results, line ${number}: custom_id, tool_call_id and content are required`)
    const { custom_id, tool_call_id, content } = result
    const text = typeof content === 'string' ? content : JSON.stringify(content)
    const ofLine = found.get(custom_id) ?? new Map<string, string>()
    found.set(custom_id, ofLine.set(tool_call_id, text))
  }
  return found
}

/** Makes the lines of the next round, in input order. Throws a Failure for a call without a result. */
export async function* nextRound(
  input: AsyncIterable<Buffer>,
  turns: ReadonlyMap<string, Turn>,
  results: ReadonlyMap<string, ReadonlyMap<string, string>>,
): AsyncGenerator<Buffer> {
  const scanner = new LineScanner({ validated: true })
  for await (const { line: bytes } of jsonLines(input)) {
    const line = scanner.scan(bytes, 0, bytes.length)
    if (!line.ok) throw new Failure(`the input is not the input file of this batch: ${line.message}`)
    const turn = turns.get(line.custom_id)
    if (!turn) continue
    const { messages } = line.body
    if (messages.kind !== 'array' || messages.count === 0)
      throw new Failure(`the input is not the input file of this batch: ${line.custom_id} has no messages`)
    const added = [turn.message, ...turn.calls.map((call) => toolMessage(call, results))]
    const end = messages.end - 1
    yield Buffer.concat([
      bytes.subarray(0, end),
      Buffer.from(`,${added.join(',')}`),
      bytes.subarray(end),
      LINE_BREAK,
    ])
  }
}

function toolMessage(
  { custom_id, tool_call_id, name }: ToolCall,
  results: ReadonlyMap<string, ReadonlyMap<string, string>>,
): string {
  const content = results.get(custom_id)?.get(tool_call_id)
  if (content === undefined)
    throw new Failure(`the tool results have no result for ${name} (${tool_call_id}) of line ${custom_id}`)
  return JSON.stringify({ role: 'tool', tool_call_id, content })
}
