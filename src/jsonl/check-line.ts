// Checks whether the body of a well-formed line can run on its model. A line that cannot run fails before it costs
// anything. Only certain errors are reported; the model server decides the rest.
import { type Endpoint, type EndpointPath, MIXED } from '../domain/endpoint.ts'
import { type WireError, wireError } from '../domain/errors.ts'
import type { Model } from '../domain/model.ts'
import { counted, quoted } from '../domain/text.ts'
import { charactersPerTokenMax, countedCharacters } from '../domain/tokens.ts'
import { type InputLine, streamingMessage } from './line-scan.ts'
import type { BodyFacts, Field, NumberField } from './line-scan-body.ts'
import type { MessageFacts, MessageProblem } from './line-scan-messages.ts'
import { outputTokensAtLeast } from './projection.ts'

const PROBLEMS: Record<MessageProblem, { field: string; message: string }> = {
  not_an_object: { field: '', message: 'must be an object with `role` and `content`.' },
  role_missing: { field: '.role', message: 'must be a string.' },
}

const ENCODINGS = ['float', 'base64']

/** The error with which the line fails, or null when it may be sent. `endpoint` is that of its batch. */
export function checkLine(
  line: InputLine,
  models: ReadonlyMap<string, Model>,
  endpoint: string,
): WireError | null {
  const { body, url } = line
  if (url !== endpoint && endpoint !== MIXED) {
    const message = `The line's \`url\` is "${url}", but the \`endpoint\` of its batch is "${endpoint}". Create another batch for it, or one with \`endpoint\` "mixed".`
    return wireError('endpoint_mismatch', message, { param: 'url' })
  }
  const keyError = checkKeys(body)
  if (keyError !== null) return keyError
  if (body.model === null) {
    const why = body.model_spans.length === 0 ? 'is missing' : 'must be a string'
    return refuse('model', `\`model\` ${why}.`)
  }
  const model = models.get(body.model)
  if (model === undefined) {
    const message = `The model ${quoted(body.model)} does not exist. \`GET /v1/models\` lists those that do.`
    return wireError('model_not_found', message, { param: 'model' })
  }
  if (body.endpoint.isGone) return rejectGone(url)
  if (!model.endpoints.includes(url)) return rejectEndpoint(model, url)
  return checkRequired(body) ?? checkFields(body) ?? checkWindow(line, model)
}

function rejectGone(url: EndpointPath): WireError {
  const message = `The configuration of the service no longer declares the endpoint ${url}. When its operator declares it again, a retry of the batch sends the line.`
  return wireError('endpoint_not_supported', message, { param: 'url' })
}

function rejectEndpoint({ id, endpoints }: Model, url: EndpointPath): WireError {
  const message = `The model ${quoted(id)} does not serve ${url}. It serves ${endpoints.join(', ')}; \`GET /v1/models\` shows what each model serves.`
  return wireError('endpoint_not_supported', message, { param: 'model' })
}

/** Rejects ambiguous keys and streams: the price and the checks must apply to the request that the server reads. */
function checkKeys({ endpoint, streams, ambiguous, foreign }: BodyFacts): WireError | null {
  if (streams !== null)
    return wireError('streaming_not_supported', streamingMessage(streams), { param: streams })
  if (ambiguous === null) return foreign === null ? null : rejectForeign(foreign, endpoint)
  const { key, name, why, within } = ambiguous
  const where = within === key ? 'The body' : `\`${within}\``
  const message =
    why === 'twice'
      ? `${where} has the key \`${name}\` twice in one object, and servers differ in which one they read. Keep one.`
      : `${where} has the key ${quoted(key)}, which some servers read as \`${name}\`. Write \`${name}\`, or leave it out.`
  return refuse(within, message)
}

/** Rejects a field that some servers read as a limit and others ignore: projected costs would not include it. */
function rejectForeign({ name, role }: Field, { portable }: Endpoint): WireError {
  const instead = role === 'foreign limit' ? portable.limit : portable.choices
  return refuse(name, `\`${name}\` is read by some servers only. Use ${instead} instead.`)
}

/** Rejects a body that has none of the endpoint's sets of required fields. */
function checkRequired({ endpoint, fields }: BodyFacts): WireError | null {
  const sets = endpoint.required
  for (const names of sets) if (hasAll(fields, names)) return null
  const isGiven = (name: string): boolean => hasAll(fields, [name])
  // A set of required fields counts as the intended one if any of its fields is given.
  const meant = sets.find((names) => names.some(isGiven)) ?? sets[0] ?? []
  const missing = meant.find((name) => !isGiven(name)) ?? ''
  return refuse(missing, `\`${missing}\` is missing.`)
}

function hasAll(fields: BodyFacts['fields'], names: readonly string[]): boolean {
  for (const name of names) if ((fields.get(name)?.kind ?? null) === null) return false
  return true
}

function checkFields(body: BodyFacts): WireError | null {
  for (const field of body.found) {
    const error = checkField(field, body)
    if (error !== null) return error
  }
  return null
}

function checkField(field: Field, body: BodyFacts): WireError | null {
  const { name, kind } = field
  switch (field.role) {
    case 'messages':
      return checkMessages(body.messages)
    case 'items':
      return checkItems(field, body.messages)
    case 'texts':
    case 'documents':
      return checkTexts(field)
    case 'limit':
      return isWhole(field.number) ? null : refuse(name, `\`${name}\` must be an integer.`)
    case 'choices':
    case 'count':
      if (isWhole(field.number) && (field.number ?? 1) > 0) return null
      return refuse(name, `\`${name}\` must be a positive integer.`)
    case 'number':
      return Number.isNaN(field.number) ? refuse(name, `\`${name}\` must be a number.`) : null
    case 'encoding':
      if (!field.isGiven || ENCODINGS.includes(body.encoding ?? '')) return null
      return refuse(name, `\`${name}\` must be "float" or "base64".`)
    case 'background':
      if (kind !== 'true') return null
      return refuse(name, `\`${name}\` cannot be true: a batch waits for each answer. Leave it out.`)
    default:
      return null
  }
}

function checkMessages(messages: MessageFacts): WireError | null {
  if (messages.kind !== 'array') return refuse('messages', '`messages` must be an array.')
  if (messages.count === 0) return refuse('messages', '`messages` must hold at least one message.')
  if (messages.problem === null) return null
  const { field, message } = PROBLEMS[messages.problem]
  const param = `messages[${messages.problem_index}]${field}`
  return refuse(param, `\`${param}\` ${message}`)
}

function checkItems({ name, kind }: Field, items: MessageFacts): WireError | null {
  if (kind !== 'string' && kind !== 'array')
    return refuse(name, `\`${name}\` must be a string or an array of items.`)
  if (kind === 'array' && items.count === 0) return refuse(name, `\`${name}\` must hold at least one item.`)
  if (items.problem === null) return null
  const param = `${name}[${items.problem_index}]`
  return refuse(param, `\`${param}\` must be an object.`)
}

function checkTexts({ name, role, texts }: Field): WireError | null {
  if (texts === null || texts.problem === null) return null
  if (texts.problem === 'empty') return refuse(name, `\`${name}\` must not be an empty array.`)
  const param = texts.problem_index < 0 ? name : `${name}[${texts.problem_index}]`
  const one = role === 'texts' ? 'a string or an array of token IDs' : 'a string or an object with a text'
  const many = texts.problem_index < 0 ? ', or an array of such' : ''
  return refuse(param, `\`${param}\` must be ${one}${many}.`)
}

/** Whether the field is absent or an integer. */
function isWhole(field: NumberField): boolean {
  return field === null || Number.isInteger(field)
}

/** Rejects an output limit or a chat that exceeds the context window in any tokenizer. The server decides the rest. */
function checkWindow({ body, bytes }: InputLine, model: Model): WireError | null {
  const window = model.context_window
  if (window === null) return null
  const asked = outputTokensAtLeast(body)
  if (asked > window) {
    const message = `The output limit of ${asked} tokens alone exceeds the context window of ${window} tokens of ${quoted(model.id)}. Lower ${body.endpoint.portable.limit}.`
    return wireError('context_length_exceeded', message, { param: body.endpoint.required[0]?.[0] ?? 'body' })
  }
  if (!body.fields.has('messages')) return null
  const { text_bytes, start, end } = body.messages
  if (text_bytes === 0) return null
  const perToken = charactersPerTokenMax(model.seen)
  // A character takes at least a byte, so a shorter text needs no count of characters.
  const mayExceed = Math.ceil(text_bytes / perToken) + asked > window
  if (!mayExceed) return null
  const text = countedText(bytes.toString('utf8', start, end))
  const input = Math.max(1, Math.ceil(text / perToken))
  if (input + asked <= window) return null
  const message = `The messages are at least ${counted(input, 'token')} long, which together with an output limit of ${asked} exceeds the context window of ${window} tokens of ${quoted(model.id)}. Shorten the messages or lower \`max_tokens\`.`
  return wireError('context_length_exceeded', message, { param: 'messages' })
}

/** The roles whose messages every chat template renders; templates may leave out earlier answers and unknown roles. */
const ROLES_IN_PROMPT: readonly unknown[] = ['system', 'developer', 'user', 'tool', 'function']

/** The number of characters that surely reach the model. */
function countedText(messages_json: string): number {
  const messages: unknown = JSON.parse(messages_json)
  let characters = 0
  for (const message of Array.isArray(messages) ? messages : []) {
    if (!ROLES_IN_PROMPT.includes(message.role)) continue
    for (const text of textsOf(message.content)) characters += countedCharacters(text)
  }
  return characters
}

function textsOf(content: unknown): string[] {
  if (typeof content === 'string') return [content]
  if (!Array.isArray(content)) return []
  return content.map((part) => part?.text).filter((text) => typeof text === 'string')
}

function refuse(param: string, message: string): WireError {
  return wireError('invalid_request', message, { param })
}
