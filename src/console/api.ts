// Calls the service's API with the session's cookie. A call that fails throws an ApiFailure, with a message for people.
import type { List } from '../wire/shape.ts'
import { every, now } from './browser-clock.ts'
import { Cell } from './cell.ts'
import { t } from './i18n.ts'

/** The header by which the service recognizes the console's pages: other sites cannot send it. */
const CONSOLE_HEADER = { 'x-offpeak-console': '1' }

export class ApiFailure extends Error {
  readonly status: number
  readonly code: string
  readonly param: string | null
  readonly requestId: string | null
  /** The whole answer, for fields that only some errors have. */
  readonly body: unknown

  constructor(
    status: number,
    code: string,
    message: string,
    more: { param?: string; requestId?: string; body?: unknown } = {},
  ) {
    super(message)
    this.status = status
    this.code = code
    this.param = more.param ?? null
    this.requestId = more.requestId ?? null
    this.body = more.body
  }
}

export type Query = Readonly<Record<string, string | number | boolean | null | undefined>>

export function pathWith(path: string, query: Query): string {
  const given = Object.entries(query).filter(
    ([, value]) => value !== null && value !== undefined && value !== '',
  )
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString()
  return text === '' ? path : `${path}?${text}`
}

type Method = 'GET' | 'POST' | 'DELETE'

type CallOptions = { signal?: AbortSignal; headers?: Record<string, string> }

/** The path of the service behind a proxy, without a slash at its end: scripts are at BASE/console/assets/VERSION/. */
const BASE = new URL('../../..', import.meta.url).pathname.replace(/\/$/, '')

/** The address of a path of the service, such as `/v1/batches`. */
export const serviceUrl = (path: string): string => BASE + path

let onSignedOut: () => void = () => {}

/** Unix ms of the last answer while the service cannot be reached; otherwise null. */
export const connectionLost = new Cell<number | null>(null)
const CONNECT_MS = 2_000
let answeredAt = now()

function onAnswer(): void {
  answeredAt = now()
  connectionLost.set(null)
}

/** Polls the service until it answers, so that the page's data can be read again. */
function onUnreachable(): ApiFailure {
  if (connectionLost.value === null) {
    connectionLost.set(answeredAt)
    const end = every(CONNECT_MS, () => {
      if (connectionLost.value === null) end()
      else void fetch(serviceUrl('/healthz')).then(onAnswer, () => {})
    })
  }
  return new ApiFailure(0, 'unreachable', t('error.unreachable'))
}

/** Sets the function that is called when the service no longer knows the session. */
export function whenSignedOut(act: () => void): void {
  onSignedOut = act
}

export async function fetchApi(
  method: Method,
  path: string,
  body?: unknown,
  options: CallOptions = {},
): Promise<Response> {
  let response: Response
  try {
    response = await fetch(serviceUrl(path), {
      method,
      credentials: 'same-origin',
      headers: {
        ...CONSOLE_HEADER,
        'accept-language': document.documentElement.lang,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...options.headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(options.signal ? { signal: options.signal } : {}),
    })
  } catch (error) {
    if (options.signal?.aborted) throw error
    throw onUnreachable()
  }
  onAnswer()
  if (!response.ok)
    throw failureOf(response.status, await response.text(), response.headers.get('x-request-id'))
  return response
}

function failureOf(status: number, text: string, requestId: string | null): ApiFailure {
  if (status === 401) onSignedOut()
  const { error } = parsed(text) as { error?: { code?: string; message?: string; param?: string } }
  return new ApiFailure(
    status,
    error?.code ?? `http_${status}`,
    error?.message ?? t('error.status', { status }),
    { param: error?.param, requestId: requestId ?? undefined, body: error },
  )
}

function parsed(text: string): object {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? value : {}
  } catch {
    return {}
  }
}

export async function get<T>(path: string, query: Query = {}, options: CallOptions = {}): Promise<T> {
  const response = await fetchApi('GET', pathWith(path, query), undefined, options)
  return (await response.json()) as T
}

const PAGE_MAX = 100

export async function getAll<T>(path: string, options: CallOptions = {}): Promise<T[]> {
  const all: T[] = []
  let cursor: string | null = null
  do {
    const page: List<T> = await get(path, { limit: PAGE_MAX, starting_after: cursor }, options)
    all.push(...page.data)
    cursor = page.next_cursor
  } while (cursor !== null)
  return all
}

/** The empty pages in a row after which a search shows no more rows for now. */
const EMPTY_PAGES_MAX = 20

/** Reads a page of a list. Empty pages are skipped while the list continues. */
export async function getPage<T>(path: string, query: Query, options: CallOptions = {}): Promise<List<T>> {
  let page = await get<List<T>>(path, query, options)
  for (let i = 0; i < EMPTY_PAGES_MAX && page.data.length === 0 && page.next_cursor !== null; i++)
    page = await get<List<T>>(path, { ...query, starting_after: page.next_cursor }, options)
  return page
}

/** Reads result lines behind line `after`; while the batch runs, those before the first unfinished line. */
export async function readResults(
  batchId: string,
  { after, limit }: { after: string; limit: number },
  signal: AbortSignal,
): Promise<{ lines: string[]; next: string | null }> {
  const path = `/v1/batches/${encodeURIComponent(batchId)}/results`
  const query = { after, limit, contiguous: true }
  const response = await fetchApi('GET', pathWith(path, query), undefined, { signal })
  const lines = (await response.text()).split('\n').filter((line) => line !== '')
  const { headers } = response
  return { lines, next: headers.get('x-has-more') === 'true' ? headers.get('x-next-after') : null }
}

export async function post<T>(path: string, body?: unknown, options: CallOptions = {}): Promise<T> {
  const response = await fetchApi('POST', path, body, options)
  return (await response.json()) as T
}

/** The keys of calls whose answer has not come, by path and body. */
const unanswered = new Map<string, string>()

/** Creates what a person asked for, once: a call whose answer was lost is repeated under its key. */
export async function createOnce<T>(path: string, body: unknown): Promise<T> {
  const call = `${path} ${JSON.stringify(body)}`
  const key = unanswered.get(call) ?? crypto.getRandomValues(new Uint32Array(4)).join('-')
  unanswered.set(call, key)
  const created = await post<T>(path, body, { headers: { 'idempotency-key': key } })
  unanswered.delete(call)
  return created
}

export async function remove(path: string): Promise<void> {
  await fetchApi('DELETE', path)
}

/** Uploads a file and reports its progress, which fetch cannot. */
export function upload<T>(
  path: string,
  form: FormData,
  onProgress: (share: number) => void,
  signal: AbortSignal,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest()
    request.open('POST', serviceUrl(path))
    for (const [name, value] of Object.entries(CONSOLE_HEADER)) request.setRequestHeader(name, value)
    request.upload.onprogress = ({ loaded, total }) => onProgress(total > 0 ? loaded / total : 0)
    request.onload = () => {
      if (request.status >= 200 && request.status < 300) resolve(JSON.parse(request.responseText) as T)
      else reject(failureOf(request.status, request.responseText, request.getResponseHeader('x-request-id')))
    }
    request.onerror = () => reject(onUnreachable())
    request.onabort = () => reject(signal.reason)
    signal.addEventListener('abort', () => request.abort(), { once: true })
    request.send(form)
  })
}
