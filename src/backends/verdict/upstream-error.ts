// Reads what a model server says went wrong, in whichever shape it says it:
// - `{"error": {"message", "type", "code", …}}`: OpenAI, vLLM since 0.10, llama.cpp, Ollama, hosted providers
// - `{"object": "error", "message", "type", "code"}`: SGLang, older vLLM
// - `{"error": "text"}`, `{"message": "text"}`, `{"detail": "text" | [{"msg"}]}`: Ollama, proxies, FastAPI
// - no JSON at all: the page of a proxy in between
import { isRecord } from '../json-record.ts'

export interface UpstreamError {
  /** One line of at most MESSAGE_LENGTH_MAX characters; '' when nothing was said. */
  message: string
  /** Every `code` and `type` given as text, in lower case: what can be told apart without reading prose. */
  marks: readonly string[]
  /** An HTTP status given inside the body, as some proxies do under a 200. */
  status: number | null
  /** The parameter that the server blames. */
  param: string | null
}

/** Validation errors may quote the whole request back; this much of a message is kept. */
export const MESSAGE_LENGTH_MAX = 600

/** More of a page than this is not looked at. */
const PAGE_LENGTH_MAX = 16_384

export function readUpstreamError(text: string): UpstreamError {
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch {
    return {
      message: oneLine(withoutTags(text.slice(0, PAGE_LENGTH_MAX))),
      marks: [],
      status: null,
      param: null,
    }
  }
  return upstreamErrorOf(parsed)
}

/** The same from a body that is already parsed. */
export function upstreamErrorOf(body: unknown): UpstreamError {
  if (!isRecord(body)) {
    return { message: typeof body === 'string' ? oneLine(body) : '', marks: [], status: null, param: null }
  }
  const error = isRecord(body.error) ? body.error : body
  const inner = isRecord(error.innererror) ? error.innererror : {}
  const marks = [error.code, error.type, inner.code].flatMap((mark) =>
    typeof mark === 'string' && mark !== '' ? [mark.toLowerCase()] : [],
  )
  return {
    message: oneLine(messageOf(error, body)),
    marks,
    status: statusOf(error.code),
    param: typeof error.param === 'string' ? error.param : null,
  }
}

function messageOf(error: Record<string, unknown>, body: Record<string, unknown>): string {
  for (const said of [error.message, body.error, body.message, error.detail]) {
    if (typeof said === 'string') return said
    if (Array.isArray(said)) return said.map(complaint).filter(Boolean).join('; ')
  }
  return ''
}

/** One entry of FastAPI's list of validation errors: where, and what. */
function complaint(entry: unknown): string {
  if (!isRecord(entry) || typeof entry.msg !== 'string') return ''
  return Array.isArray(entry.loc) ? `${entry.loc.join('.')}: ${entry.msg}` : entry.msg
}

function statusOf(code: unknown): number | null {
  const status = typeof code === 'string' ? Number(code) : code
  return typeof status === 'number' && Number.isInteger(status) && status >= 400 && status < 600
    ? status
    : null
}

function withoutTags(page: string): string {
  return page.replace(/<(style|script)\b[^>]*>[^<]*<\/\1>/gi, ' ').replace(/<[^<>]*>/g, ' ')
}

function oneLine(text: string): string {
  const line = text
    .slice(0, PAGE_LENGTH_MAX)
    // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what must go
    .replace(/[\s\u0000-\u001f\u007f]+/g, ' ')
    .trim()
  return line.length > MESSAGE_LENGTH_MAX ? `${line.slice(0, MESSAGE_LENGTH_MAX - 1)}…` : line
}
