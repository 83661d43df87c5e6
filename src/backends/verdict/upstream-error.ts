// Reads the error of a model server, in each of the formats in use:
// - `{"error": {"message", "type", "code", …}}`: OpenAI, vLLM since 0.10, llama.cpp, Ollama, hosted providers
// - `{"object": "error", "message", "type", "code"}`: SGLang, older vLLM
// - `{"error": "text", "error_type"}`: TGI
// - `{"error": "text"}`, `{"message": "text"}`, `{"detail": "text" | [{"msg"}]}`: Ollama, proxies, FastAPI
// - no JSON at all: the error page of a proxy
//
// The caller of the API reads the message, so secrets are removed before the text is cut. Nothing here recurses into
// the body: it may be nested without limit.
import { isRecord, parsedJson } from '../../domain/json-record.ts'

export interface UpstreamError {
  /** One line of at most MESSAGE_LENGTH_MAX characters; '' when there is none. */
  message: string
  /** Every `code` and `type` given as text, in lower case. */
  codes: readonly string[]
  /** An HTTP status given inside the body, as some proxies do under a 200. */
  status: number | null
  /** The parameter that the server blames, of at most PARAM_LENGTH_MAX characters. */
  param: string | null
  /** Whether the body is JSON: the words of the server itself rather than of a proxy before it. */
  isJson: boolean
}

/** Removes secrets from a text. */
export type Redact = (text: string) => string

/** Anthropic's words for an account without money, and for one that has reached its own limit: it sends them as a fault of the request. */
const NO_FUNDS = /\bYour credit balance is too low\b|\bYou have reached your specified API usage limits\b/

/** Whether the account behind the API key has nothing left to spend, whatever the status says. */
export function saysNoFunds(message: string): boolean {
  return NO_FUNDS.test(message)
}

/** Validation errors may quote the whole request back; this much of a message is kept. */
export const MESSAGE_LENGTH_MAX = 600
export const PARAM_LENGTH_MAX = 128

/** How much of a page is searched for secrets, and how much of the result is read. */
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

/** The same from a body that is already parsed. */
export function upstreamErrorOf(body: unknown, redact: Redact): UpstreamError {
  const messageIn = (text: string): string => oneLine(redact(text), MESSAGE_LENGTH_MAX)
  if (!isRecord(body)) {
    return {
      message: typeof body === 'string' ? messageIn(body) : '',
      codes: [],
      status: null,
      param: null,
      isJson: true,
    }
  }
  const error = isRecord(body.error) ? body.error : body
  const inner = isRecord(error.innererror) ? error.innererror : {}
  const codes = [error.code, error.type, error.error_type, inner.code].flatMap((code) =>
    typeof code === 'string' && code !== '' ? [code.slice(0, CODE_LENGTH_MAX).toLowerCase()] : [],
  )
  const param = typeof error.param === 'string' ? oneLine(redact(error.param), PARAM_LENGTH_MAX) : ''
  return {
    message: messageIn(messageOf(error, body)),
    codes,
    status: statusOf(error.code),
    param: param === '' ? null : param,
    isJson: true,
  }
}

function messageOf(error: Record<string, unknown>, body: Record<string, unknown>): string {
  for (const said of [error.message, body.error, body.message, error.detail]) {
    if (typeof said === 'string') return said
    if (Array.isArray(said)) return said.slice(0, COMPLAINTS_MAX).map(complaint).filter(Boolean).join('; ')
  }
  return ''
}

/** One entry of FastAPI's list of validation errors: where, and what. */
function complaint(entry: unknown): string {
  if (!isRecord(entry) || typeof entry.msg !== 'string') return ''
  const where = Array.isArray(entry.loc) ? entry.loc.slice(0, STEPS_MAX).filter(isStep).join('.') : ''
  return where === '' ? entry.msg : `${where}: ${entry.msg}`
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

/** Without line breaks, control characters and bidirectional controls. */
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

/** What stands between these is not text. */
const UNSEEN = ['style', 'script']

/** `page` without tags and comments, a blank in place of each. A `<` that begins no tag is text. */
export function withoutTags(page: string): string {
  // Of ASCII alone: other letters may change their length.
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

/** The index behind what begins at `open`, which is the next one for a `<` that begins no tag. */
function endOfTag(page: string, open: number): number {
  if (page.startsWith('<!--', open)) return behind(page, '-->', open + 4)
  if (!/[a-z/!?]/.test(page[open + 1] ?? '')) return open + 1
  const unseen = UNSEEN.find((name) => page.startsWith(name, open + 1))
  if (unseen === undefined) return behind(page, '>', open)
  const close = page.indexOf(`</${unseen}`, open)
  return close === -1 ? page.length : behind(page, '>', close)
}

/** The end of the page where `mark` is missing: it was cut there. */
function behind(page: string, mark: string, from: number): number {
  const at = page.indexOf(mark, from)
  return at === -1 ? page.length : at + mark.length
}

// Deeply nested JSON is not parsed: a body of brackets alone takes fifty times its size in memory, and a second for every
// few megabytes.

const BYTES_MAX = 4 * 1024 * 1024
/** Far more than a request may nest, which a server may quote. */
const DEPTH_MAX = 1000

const QUOTE = 0x22
const BACKSLASH = 0x5c

/** What `body` holds; undefined where that is no JSON, or where it is too large or nested too deep to be parsed. */
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
