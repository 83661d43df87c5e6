// The next round of a tool loop. A line whose answer asks for tools goes round again: the line itself, byte for
// byte, with the assistant's message and the tools' answers at the end of its `messages`. Everything else of it
// (custom_id, metadata, parameters) stays, so all rounds run under one entity and conversation.
import Type from 'typebox'
import { Value } from 'typebox/value'
import { LineScanner } from '../../jsonl/line-scan.ts'
import { byteLines } from '../client/byte-lines.ts'
import { Failure } from '../terminal/failure.ts'

const Call = Type.Object({
  id: Type.String(),
  function: Type.Object({ name: Type.String(), arguments: Type.String() }),
})

/** An answer that asks for tools. */
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
  /** What the tool said: text as it is, anything else as JSON. */
  content: Type.Unknown(),
})

/** One call that a model wants made; `arguments` is JSON as the model wrote it. */
export interface ToolCall {
  custom_id: string
  tool_call_id: string
  name: string
  arguments: string
}

interface Turn {
  /** The assistant's message, as JSON. */
  message: string
  calls: ToolCall[]
}

/** What the lines of an output file ask for, by custom_id; lines that ask for nothing are left out. */
export async function readTurns(output: AsyncIterable<Buffer>): Promise<Map<string, Turn>> {
  const turns = new Map<string, Turn>()
  for await (const line of byteLines(output)) {
    if (line.length === 0) continue
    const answer: unknown = JSON.parse(line.toString())
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

/** What the tools said, by custom_id and call. Throws a Failure that names a line which is no such answer. */
export async function readToolResults(
  results: AsyncIterable<Buffer>,
): Promise<Map<string, Map<string, string>>> {
  const found = new Map<string, Map<string, string>>()
  let number = 0
  for await (const line of byteLines(results)) {
    number++
    if (line.length === 0) continue
    const result: unknown = JSON.parse(line.toString())
    if (!Value.Check(ToolResult, result))
      throw new Failure(`tool answers, line ${number}: custom_id, tool_call_id and content are needed`)
    const { custom_id, tool_call_id, content } = result
    const text = typeof content === 'string' ? content : JSON.stringify(content)
    const ofLine = found.get(custom_id) ?? new Map<string, string>()
    found.set(custom_id, ofLine.set(tool_call_id, text))
  }
  return found
}

/** The lines of the next round, in the order of the last. Throws a Failure for a call that nobody answered. */
export async function* nextRound(
  input: AsyncIterable<Buffer>,
  turns: ReadonlyMap<string, Turn>,
  results: ReadonlyMap<string, ReadonlyMap<string, string>>,
): AsyncGenerator<Buffer> {
  const scanner = new LineScanner({ validated: true })
  for await (const bytes of byteLines(input)) {
    if (bytes.length === 0) continue
    const line = scanner.scan(bytes, 0, bytes.length)
    if (!line.ok) throw new Failure(`the input is not the file of this batch: ${line.message}`)
    const turn = turns.get(line.custom_id)
    if (!turn) continue
    const { messages } = line.body
    if (messages.kind !== 'array' || messages.count === 0)
      throw new Failure(`the input is not the file of this batch: ${line.custom_id} has no messages`)
    const added = [turn.message, ...turn.calls.map((call) => toolMessage(call, results))]
    const end = messages.end - 1
    yield Buffer.concat([
      bytes.subarray(0, end),
      Buffer.from(`,${added.join(',')}`),
      bytes.subarray(end),
      NEWLINE,
    ])
  }
}

const NEWLINE = Buffer.from('\n')

function toolMessage(
  { custom_id, tool_call_id, name }: ToolCall,
  results: ReadonlyMap<string, ReadonlyMap<string, string>>,
): string {
  const content = results.get(custom_id)?.get(tool_call_id)
  if (content === undefined)
    throw new Failure(`no answer to ${name} (${tool_call_id}) of line ${custom_id} is among the tool answers`)
  return JSON.stringify({ role: 'tool', tool_call_id, content })
}
