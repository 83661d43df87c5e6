// Checks whether the body of a well-formed line can run on its model. A line that cannot run fails before it costs
// anything. Only certain errors are reported; the model server decides the rest.
import { type WireError, wireError } from '../domain/errors.ts'
import type { Model } from '../domain/model.ts'
import { charactersPerTokenMax, countedCharacters } from '../domain/tokens.ts'
import { type InputLine, streamingMessage } from './line-scan.ts'
import { type BodyFacts, type NumberField, SERVER_SPECIFIC_KEYS } from './line-scan-body.ts'
import { type MessageFacts, type MessageProblem, ROLES } from './line-scan-messages.ts'

const PROBLEMS: Record<MessageProblem, { field: string; message: string }> = {
  not_an_object: { field: '', message: 'must be an object with `role` and `content`.' },
  role_missing: { field: '.role', message: 'is missing.' },
  role_unknown: { field: '.role', message: `must be one of ${ROLES.join(', ')}.` },
  content_missing: { field: '.content', message: 'must be a string or an array of parts.' },
  content_wrong_type: { field: '.content', message: 'must be a string or an array of parts.' },
  tool_call_id_missing: {
    field: '.tool_call_id',
    message: 'must be a string: it names the call that this message answers.',
  },
}

/** The error the line ends with, or null when it may be sent. */
export function checkLine(line: InputLine, models: ReadonlyMap<string, Model>): WireError | null {
  const { body } = line
  const doubt = checkKeys(body)
  if (doubt !== null) return doubt
  if (body.model === null) {
    const why = body.model_spans.length === 0 ? 'is missing' : 'must be a string'
    return refuse('model', `\`model\` ${why}.`)
  }
  const model = models.get(body.model)
  if (model === undefined) {
    const message = `The model ${quoted(body.model)} does not exist. \`GET /v1/models\` lists those that do.`
    return wireError('model_not_found', message, { param: 'model' })
  }
  return checkMessages(body.messages) ?? checkNumbers(body) ?? checkShapes(body) ?? checkWindow(line, model)
}

/** What is checked and priced here has to be what the server reads: keys that leave a choice are refused. */
function checkKeys({ streams, doubtful, serverSpecific }: BodyFacts): WireError | null {
  if (streams !== null)
    return wireError('streaming_not_supported', streamingMessage(streams), { param: streams })
  if (doubtful === null) return serverSpecific === null ? null : refuseServerSpecific(serverSpecific)
  const { key, name, why, within } = doubtful
  const where = within === key ? 'The body' : `\`${within}\``
  const message =
    why === 'twice'
      ? `${where} has the key \`${name}\` twice in one object, and servers differ in which one they read. Keep one.`
      : `${where} has the key ${quoted(key)}, which some servers read as \`${name}\`. Write \`${name}\`, or leave it out.`
  return refuse(within, message)
}

/** Some servers obey it, so it would pass the price and the caps; others ignore it. */
function refuseServerSpecific(key: keyof typeof SERVER_SPECIFIC_KEYS): WireError {
  const portable = SERVER_SPECIFIC_KEYS[key]
  return refuse(key, `\`${key}\` is read by some servers only. Use \`${portable}\` instead.`)
}

function checkMessages(messages: MessageFacts): WireError | null {
  if (messages.kind === null) return refuse('messages', '`messages` is missing.')
  if (messages.kind !== 'array') return refuse('messages', '`messages` must be an array.')
  if (messages.count === 0) return refuse('messages', '`messages` must hold at least one message.')
  if (messages.problem === null) return null
  const { field, message } = PROBLEMS[messages.problem]
  const param = `messages[${messages.problem_index}]${field}`
  return refuse(param, `\`${param}\` ${message}`)
}

function checkNumbers(body: BodyFacts): WireError | null {
  if (!isCount(body.max_tokens)) return refuse('max_tokens', '`max_tokens` must be a positive integer.')
  if (!isCount(body.max_completion_tokens)) {
    return refuse('max_completion_tokens', '`max_completion_tokens` must be a positive integer.')
  }
  if (!isCount(body.n)) return refuse('n', '`n` must be a positive integer.')
  if (Number.isNaN(body.temperature)) return refuse('temperature', '`temperature` must be a number.')
  return null
}

/** Whether the field may stay as it is: absent, or a positive integer. */
function isCount(field: NumberField): boolean {
  return field === null || (Number.isInteger(field) && field > 0)
}

function checkShapes(body: BodyFacts): WireError | null {
  if (body.tools_kind !== null && body.tools_kind !== 'null') {
    if (body.tools_kind !== 'array') return refuse('tools', '`tools` must be an array.')
    if (body.tools_problem_index >= 0) {
      const param = `tools[${body.tools_problem_index}]`
      return refuse(param, `\`${param}\` must be {"type": "function", "function": {"name": …}}.`)
    }
  }
  if (body.response_format_kind !== null && body.response_format_kind !== 'null') {
    if (body.response_format_type === null) {
      return refuse('response_format', '`response_format` must be an object with a string `type`.')
    }
    if (body.response_format_type === 'json_schema' && !body.response_format_schema_ok) {
      const message =
        '`response_format.json_schema` must be an object with a string `name` and an object `schema`.'
      return refuse('response_format.json_schema', message)
    }
  }
  return null
}

/** Reports a prompt that exceeds the context window in any tokenizer; the server decides the rest. */
function checkWindow({ body, bytes }: InputLine, model: Model): WireError | null {
  const window = model.context_window
  if (window === null) return null
  const asked = outputTokensAtLeast(body)
  if (asked > window) {
    const message = `The output limit of ${asked} tokens alone exceeds the context window of ${window} tokens of ${quoted(model.id)}. Lower \`max_tokens\`.`
    return wireError('context_length_exceeded', message, { param: 'messages' })
  }
  const { text_bytes, start, end } = body.messages
  if (text_bytes === 0) return null
  const perToken = charactersPerTokenMax(model.seen)
  // A character is a byte at least: only what may be too long is looked at closely.
  const mayExceed = Math.ceil(text_bytes / perToken) + asked > window
  if (!mayExceed) return null
  const text = countedText(bytes.toString('utf8', start, end))
  const input = Math.max(1, Math.ceil(text / perToken))
  if (input + asked <= window) return null
  const message = `The messages are at least ${input} tokens long, which together with an output limit of ${asked} exceeds the context window of ${window} tokens of ${quoted(model.id)}. Shorten the messages or lower \`max_tokens\`.`
  return wireError('context_length_exceeded', message, { param: 'messages' })
}

/** The characters that surely reach the model: templates may leave out what it said before itself. */
function countedText(messages_json: string): number {
  const messages: unknown = JSON.parse(messages_json)
  let characters = 0
  for (const message of Array.isArray(messages) ? messages : []) {
    if (message.role === 'assistant') continue
    for (const text of textsOf(message.content)) characters += countedCharacters(text)
  }
  return characters
}

function textsOf(content: unknown): string[] {
  if (typeof content === 'string') return [content]
  if (!Array.isArray(content)) return []
  return content.map((part) => part?.text).filter((text) => typeof text === 'string')
}

/** Servers differ in which of the two limits they obey when both are given: the smaller one is certain. */
function outputTokensAtLeast(body: BodyFacts): number {
  const { max_tokens, max_completion_tokens } = body
  if (max_tokens === null) return max_completion_tokens ?? 0
  return Math.min(max_tokens, max_completion_tokens ?? max_tokens)
}

function refuse(param: string, message: string): WireError {
  return wireError('invalid_request', message, { param })
}

/** A name from the file as a message may show it. */
function quoted(name: string): string {
  const shown = name.length <= 100 ? name : `${name.slice(0, 100)}…`
  return JSON.stringify(shown)
}
