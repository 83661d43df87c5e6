// Tells a whole answer as the events that the SDK of its endpoint expects of a call with `stream: true`, each part of the
// answer in one event.
import type { EndpointPath } from '../../domain/endpoint.ts'
import { isRecord } from '../../domain/json-record.ts'

type Json = Record<string, unknown>

/** Converts an answer of the endpoint (JSON) to server-sent events; null where the endpoint has none. */
export function eventStream(endpoint: EndpointPath, answer: unknown, withUsage: boolean): string | null {
  const eventsOf = isRecord(answer) ? EVENTS[endpoint] : undefined
  return eventsOf && isRecord(answer) ? eventsOf(answer, withUsage) : null
}

const EVENTS: Readonly<Partial<Record<EndpointPath, (answer: Json, withUsage: boolean) => string>>> = {
  '/v1/chat/completions': (answer, withUsage) =>
    chunks({ ...answer, object: 'chat.completion.chunk' }, listOf(answer.choices).map(delta), withUsage),
  '/v1/completions': (answer, withUsage) => chunks(answer, listOf(answer.choices), withUsage),
  '/v1/responses': (answer) => named(numbered(responseEvents(answer))),
  '/v1/messages': (answer) => named(messageEvents(answer)),
}

function listOf(value: unknown): Json[] {
  return Array.isArray(value) ? value.filter(isRecord) : []
}

function chunks({ usage, ...answer }: Json, choices: Json[], withUsage: boolean): string {
  const all = [{ ...answer, choices, ...(withUsage && { usage: null }) }]
  const last = withUsage ? [{ ...answer, choices: [], usage }] : []
  return `${[...all, ...last].map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join('')}data: [DONE]\n\n`
}

function delta({ message, ...choice }: Json): Json {
  const said = isRecord(message) ? message : {}
  const calls = Array.isArray(said.tool_calls)
    ? { tool_calls: listOf(said.tool_calls).map((call, index) => ({ index, ...call })) }
    : {}
  return { ...choice, delta: { ...said, ...calls } }
}

function named(events: Json[]): string {
  return events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join('')
}

function numbered(events: Json[]): Json[] {
  return events.map((event, sequence_number) => ({ ...event, sequence_number }))
}

function responseEvents(answer: Json): Json[] {
  const begun = { ...answer, status: 'in_progress', output: [], usage: null }
  const ended = `response.${answer.status === 'incomplete' || answer.status === 'failed' ? answer.status : 'completed'}`
  return [
    { type: 'response.created', response: begun },
    { type: 'response.in_progress', response: begun },
    ...listOf(answer.output).flatMap(itemEvents),
    { type: ended, response: answer },
  ]
}

function itemEvents(item: Json, output_index: number): Json[] {
  const { id: item_id, arguments: call } = item
  const begun = { ...item, status: 'in_progress' }
  const parts = listOf(item.content).flatMap((part, content_index) =>
    partEvents(part, { item_id, output_index, content_index }),
  )
  const at = { item_id, output_index }
  return [
    {
      type: 'response.output_item.added',
      output_index,
      item: {
        ...begun,
        ...(parts.length > 0 && { content: [] }),
        ...(call !== undefined && { arguments: '' }),
      },
    },
    ...parts,
    ...(call === undefined
      ? []
      : [
          { type: 'response.function_call_arguments.delta', ...at, delta: call },
          { type: 'response.function_call_arguments.done', ...at, name: item.name, arguments: call },
        ]),
    { type: 'response.output_item.done', output_index, item },
  ]
}

function partEvents(part: Json, at: Json): Json[] {
  const said = part.text ?? part.refusal
  const isText = part.type === 'output_text'
  const kind = isText ? 'response.output_text' : 'response.refusal'
  const key = isText ? 'text' : 'refusal'
  const more = isText ? { logprobs: part.logprobs ?? [] } : {}
  if (!isText && part.type !== 'refusal') return []
  return [
    { type: 'response.content_part.added', ...at, part: { ...part, [key]: '' } },
    { type: `${kind}.delta`, ...at, delta: said, ...more },
    { type: `${kind}.done`, ...at, [key]: said, ...more },
    { type: 'response.content_part.done', ...at, part },
  ]
}

function messageEvents(answer: Json): Json[] {
  const { stop_reason, stop_sequence, usage } = answer
  const message = { ...answer, content: [], stop_reason: null, stop_sequence: null }
  return [
    { type: 'message_start', message },
    ...listOf(answer.content).flatMap(blockEvents),
    { type: 'message_delta', delta: { stop_reason, stop_sequence: stop_sequence ?? null }, usage },
    { type: 'message_stop' },
  ]
}

/** The parts of a block that are streamed as changes: the empty block, and its changes. */
const DELTAS: Readonly<Record<string, (block: Json) => [empty: Json, ...deltas: Json[]]>> = {
  text: ({ text, citations }) => [
    { text: '', ...(Array.isArray(citations) && { citations: [] }) },
    { type: 'text_delta', text },
    ...listOf(citations).map((citation) => ({ type: 'citations_delta', citation })),
  ],
  thinking: ({ thinking, signature = '' }) => [
    { thinking: '', signature: '' },
    { type: 'thinking_delta', thinking },
    { type: 'signature_delta', signature },
  ],
  tool_use: ({ input }) => [{ input: {} }, { type: 'input_json_delta', partial_json: JSON.stringify(input) }],
}

function blockEvents(block: Json, index: number): Json[] {
  const [empty, ...deltas] = DELTAS[String(block.type)]?.(block) ?? [{}]
  return [
    { type: 'content_block_start', index, content_block: { ...block, ...empty } },
    ...deltas.map((one) => ({ type: 'content_block_delta', index, delta: one })),
    { type: 'content_block_stop', index },
  ]
}
