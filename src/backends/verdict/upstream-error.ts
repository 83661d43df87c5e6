// Reads the error of a model server, in each of the formats in use:
// - `{"error": {"message", "type", "code", …}}`: OpenAI, vLLM since 0.10, llama.cpp, Ollama, hosted providers; Gemini puts
//   it into a list
// - `{"object": "error", "message", "type", "code"}`: SGLang, older vLLM
// - `{"error": "text", "error_type"}`: TGI; `{"error": "text", "code"}`: xAI
// - `{"error": "text"}`, `{"message": "text"}`, `{"Message": "text"}`, `{"msg": "text"}`: Ollama, proxies, AWS
// - `{"detail": "text" | {…} | [{"loc", "msg"}]}`: FastAPI; `{"title", "detail"}`: RFC 9457; `{"errors": […]}`
// - an error of these formats as the text of another one's message: LiteLLM, OpenRouter
// - no JSON at all: the error page of a proxy
//
// The caller of the API reads the message, so secrets are removed before the text is cut. Nothing here recurses deeply into
// the body: it may be nested without limit.
import { isRecord, parsedJson } from '../../domain/json-record.ts'

export interface UpstreamError {
  /** The message in one line of at most MESSAGE_LENGTH_MAX characters; '' when there is none. */
  message: string
  /** The values of `code` and `type` in the error that are text, in lower case. */
  codes: readonly string[]
  /** The HTTP status inside the body, as some proxies send it with status 200. */
  status: number | null
  /** The parameter that the server blames, as a path in the body, of at most PARAM_LENGTH_MAX characters. */
  param: string | null
  /** Whether the body is JSON: the message is then the server's own rather than a proxy's. */
  isJson: boolean
}

export type Redact = (text: string) => string

/** The longest message that is kept, in characters: validation errors may quote the whole request. */
export const MESSAGE_LENGTH_MAX = 600
export const PARAM_LENGTH_MAX = 128

/** The bytes of a page that are searched for secrets; PAGE_LENGTH_MAX: the characters of the result that are read. */
const PAGE_BYTES_MAX = 65_536
const PAGE_LENGTH_MAX = 16_384
const COMPLAINTS_MAX = 20
const STEPS_MAX = 10
const CODE_LENGTH_MAX = 100

export function readUpstreamError(body: Buffer, redact: Redact): UpstreamError {
  const parsed = parseBody(body)
  if (parsed !== undefined) return upstreamErrorOf(parsed, redact)
  const page = redact(body.toString('utf8', 0, PAGE_BYTES_MAX)).slice(0, PAGE_LENGTH_MAX)
  return {
    message: oneLine(withoutTags(page), MESSAGE_LENGTH_MAX),
    codes: [],
    status: null,
    param: null,
    isJson: false,
  }
}

/** Reads a server's error from its parsed JSON body. */
export function upstreamErrorOf(body: unknown, redact: Redact): UpstreamError {
  const records = recordsOf(body)
  const given = records.flatMap((one) => CODE_KEYS.flatMap((key) => textsOf(one[key])))
  const param = records.flatMap(paramsOf).map((one) => oneLine(redact(one), PARAM_LENGTH_MAX))
  return {
    message: oneLine(redact(wordsOf(body)), MESSAGE_LENGTH_MAX),
    codes: given.map((code) => code.slice(0, CODE_LENGTH_MAX).toLowerCase()),
    status: records.map((one) => statusOf(one.code ?? one.status)).find((status) => status !== null) ?? null,
    param: param.find((one) => one !== '') ?? null,
    isJson: true,
  }
}

/** The keys under which an error has an inner error; the next constant limits their depth. */
const INNER_KEYS = ['error', 'errors', 'detail', 'details', 'innererror']
const DEPTH_MAX_OF_ERRORS = 5
const RECORDS_MAX = 40
const CODE_KEYS = [
  'code',
  'type',
  'error_type',
  'error_code',
  'errorCode',
  'status',
  'reason',
  'Code',
  '__type',
]

/** The nested records of an error, the outermost first. */
function recordsOf(body: unknown, depth = 0): Record<string, unknown>[] {
  if (depth > DEPTH_MAX_OF_ERRORS) return []
  if (Array.isArray(body)) return body.slice(0, COMPLAINTS_MAX).flatMap((one) => recordsOf(one, depth + 1))
  const passedOn = typeof body === 'string' ? errorWithin(body) : undefined
  if (passedOn !== undefined) return recordsOf(passedOn, depth + 1)
  if (!isRecord(body)) return []
  // An error about a parameter may quote an error from the request.
  const passedOnIn = paramsOf(body).length > 0 ? [] : MESSAGE_KEYS.map((key) => errorWithin(body[key]))
  const inner = [...INNER_KEYS.map((key) => body[key]), ...passedOnIn]
  return [body, ...inner.flatMap((one) => recordsOf(one, depth + 1))].slice(0, RECORDS_MAX)
}

/** The keys of an error's message; the first that is present counts. */
const MESSAGE_KEYS = ['message', 'Message', 'msg', 'error_message', 'errorMessage', 'error_description']

function wordsOf(body: unknown, depth = 0): string {
  if (typeof body === 'string') {
    const passedOn = depth > DEPTH_MAX_OF_ERRORS ? undefined : errorWithin(body)
    return (passedOn === undefined ? '' : wordsOf(passedOn, depth + 1)) || body
  }
  if (depth > DEPTH_MAX_OF_ERRORS) return ''
  if (Array.isArray(body))
    return body
      .slice(0, COMPLAINTS_MAX)
      .map((one) => wordsOf(one, depth + 1))
      .filter(Boolean)
      .join('; ')
  if (!isRecord(body)) return ''
  const { error, errors, detail, title, description, metadata, loc } = body
  const raw = isRecord(metadata) ? metadata.raw : undefined
  const said = [isRecord(error) ? error : raw, ...MESSAGE_KEYS.map((key) => body[key])]
  const words = [...said, error, detail, errors, title, description]
    .map((one) => wordsOf(one, depth + 1))
    .find(Boolean)
  const where = Array.isArray(loc) ? loc.slice(0, STEPS_MAX).filter(isStep).join('.') : ''
  return where === '' || words === undefined ? (words ?? '') : `${where}: ${words}`
}

/** The text that LiteLLM puts around the error of another server. */
const PASSED_ON =
  /^(?:litellm\.\w+: )?(?:\w+(?:Error|Exception)(?:: | - ))*(?:Error code: \d+ - )?b?['"]?([[{][\s\S]*[\]}])['"]?[\s.]*(?:Received Model Group=[\s\S]*)?$/
const PASSED_ON_LENGTH_MAX = 8_192

/** Parses the error that is the whole text of a message; undefined where there is none. */
function errorWithin(message: unknown): unknown {
  if (typeof message !== 'string' || message.length > PASSED_ON_LENGTH_MAX) return undefined
  const [, text] = PASSED_ON.exec(message) ?? []
  if (text === undefined) return undefined
  // Python prints parsed JSON with other quotes.
  const asJson = text.replace(/'(?=[\w{[:,}\] ]|$)|(?<=[{[:, ])'/g, '"').replace(/\bNone\b/g, 'null')
  const found = parseBody(Buffer.from(text)) ?? parseBody(Buffer.from(asJson))
  return typeof found === 'object' && found !== null ? found : undefined
}

/** The parameters that an error blames; Python servers write None for no parameter. */
function paramsOf({ param, loc }: Record<string, unknown>): string[] {
  const params = textsOf(param).filter((one) => one !== 'None')
  const steps = Array.isArray(loc) && loc[0] === BODY ? loc.slice(0, STEPS_MAX).filter(isStep) : []
  return [...params, steps.join('.')].map(pathInBody).filter((one) => one !== '')
}

/** FastAPI's name for the body of a request, the first step of a path. */
const BODY = 'body'

/**
 * Converts a parameter's path of FastAPI or vLLM, which also name the classes that they tried:
 * `body.messages.0.ChatCompletionUserMessageParam.content` is `messages[0].content`.
 */
function pathInBody(param: string): string {
  const [first, ...steps] = param.split('.')
  if (first !== BODY) return param
  const fields = steps.filter((step) => !/^[A-Z]/.test(step))
  return fields.map((step, i) => (/^\d+$/.test(step) ? `[${step}]` : i === 0 ? step : `.${step}`)).join('')
}

function textsOf(value: unknown): string[] {
  return typeof value === 'string' && value !== '' ? [value] : []
}

function isStep(step: unknown): step is string | number {
  return typeof step === 'string' || typeof step === 'number'
}

function statusOf(code: unknown): number | null {
  const status = typeof code === 'string' ? Number(code) : code
  return typeof status === 'number' && Number.isInteger(status) && status >= 400 && status < 600
    ? status
    : null
}

/** Joins a text into one line without line breaks, control characters and bidirectional controls. */
function oneLine(text: string, length_max: number): string {
  const line = text
    .slice(0, PAGE_LENGTH_MAX)
    .replace(/[\s\p{Cc}\p{Bidi_Control}]+/gu, ' ')
    .trim()
  // The cut may split a surrogate pair.
  return (line.length > length_max ? `${line.slice(0, length_max - 1)}…` : line).toWellFormed()
}

// The text of an error page is found in one pass: a regular expression that backtracks could take minutes on a page
// that was made for that.

/** The HTML elements whose content browsers do not show. */
const UNSEEN = ['style', 'script']

/** Removes tags and comments from `page`, a blank in place of each. A `<` that begins no tag is text. */
export function withoutTags(page: string): string {
  // Only ASCII letters change: other letters may change their length.
  const lower = page.replace(/[A-Z]+/g, (letters) => letters.toLowerCase())
  let text = ''
  let at = 0
  for (;;) {
    const open = page.indexOf('<', at)
    if (open === -1) return text + page.slice(at)
    const end = endOfTag(lower, open)
    text += end === open + 1 ? page.slice(at, end) : `${page.slice(at, open)} `
    at = end
  }
}

/** The index after the tag or comment that begins at `open`; the next index for a `<` that begins no tag. */
function endOfTag(page: string, open: number): number {
  if (page.startsWith('<!--', open)) return endOfMark(page, '-->', open + 4)
  if (!/[a-z/!?]/.test(page[open + 1] ?? '')) return open + 1
  const unseen = UNSEEN.find((name) => page.startsWith(name, open + 1))
  if (unseen === undefined) return endOfMark(page, '>', open)
  const close = page.indexOf(`</${unseen}`, open)
  return close === -1 ? page.length : endOfMark(page, '>', close)
}

/** The index after `mark`; the end of the page where `mark` is missing because the page was cut. */
function endOfMark(page: string, mark: string, from: number): number {
  const at = page.indexOf(mark, from)
  return at === -1 ? page.length : at + mark.length
}

// Deeply nested JSON is not parsed: a body of brackets alone takes fifty times its size in memory, and a second for every
// few megabytes.

const BYTES_MAX = 4 * 1024 * 1024
/** The deepest nesting that is parsed: far more than a request may have, which a server may quote. */
const DEPTH_MAX = 1000

const QUOTE = 0x22
const BACKSLASH = 0x5c

/** Parses `body`; undefined where it is no JSON, too large, or nested too deep. */
export function parseBody(body: Buffer): unknown {
  return body.length > BYTES_MAX || nestsTooDeep(body) ? undefined : parsedJson(body.toString())
}

function nestsTooDeep(body: Buffer): boolean {
  let depth = 0
  let inText = false
  for (let i = 0; i < body.length; i++) {
    const c = body[i]!
    if (inText) {
      if (c === BACKSLASH) i++
      else if (c === QUOTE) inText = false
    } else if (c === QUOTE) inText = true
    // Brackets and braces differ in this bit alone.
    else if ((c | 0x20) === 0x7b && ++depth > DEPTH_MAX) return true
    else if ((c | 0x20) === 0x7d) depth--
  }
  return false
}
