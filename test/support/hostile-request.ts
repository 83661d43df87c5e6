// Generates one hostile request from a seed.
import { type SeededRandom, seededRandom } from '../simulation/seeded-random.ts'

export interface HostileRequest {
  bytes: Buffer
  /** Whether it is a request at all and has an end: then there has to be an answer. */
  complete: boolean
  /** Its answer has no body. */
  bodiless: boolean
  /** Sent a byte at a time. */
  drip: boolean
}

const METHODS = ['GET', 'GET', 'GET', 'POST', 'POST', 'POST', 'DELETE', 'HEAD', 'PUT', 'PATCH', 'OPTIONS']
const NAMES = [
  '__proto__',
  'constructor',
  'prototype',
  'toString',
  'hasOwnProperty',
  'valueOf',
  '__defineGetter__',
]
const SEGMENTS = [
  ...NAMES,
  '..',
  '%2e%2e',
  '%00',
  '%zz',
  '%',
  '%C0%AF',
  '%F0%9F%92%A9',
  'a%2Fb',
  "' OR 1=1--",
  '#{7*7}',
  '{{7*7}}',
  '<script>',
  '*',
  ':batch_id',
  'x'.repeat(3000),
  '\u00e9\u00ff',
  '',
  'null',
  '-1',
  '1e400',
]
const ROUTES = [
  '/v1/files',
  '/v1/files/ID',
  '/v1/files/ID/content',
  '/v1/batches',
  '/v1/batches/ID',
  '/v1/batches/ID/cancel',
  '/v1/models',
  '/v1/models/ID',
  '/v1/models/a/ID/c',
  '/v1/requests/ID',
  '/v1/limits',
  '/v1/limits/ID',
  '/v1/events',
  '/v1/events/ID',
  '/v1/webhooks',
  '/v1/webhooks/ID',
  '/v1/webhooks/ID/deliveries',
  '/v1/usage/entities',
  '/v1/chat/completions',
  '/healthz',
  '/openapi.json',
  '/config.schema.json',
  '/ID',
  '/v1/ID/ID',
  '/',
  '*',
  'http://elsewhere/v1/files',
  '//v1//files',
]
const QUERIES = [
  'limit=1e999',
  'limit=-0',
  'limit=99999999999999999999',
  'limit=5&limit=6',
  'limit[]=1',
  'limit[__proto__]=1',
  '__proto__[x]=1',
  'after=__proto__',
  'starting_after=%00',
  'after=batch_00000000000000000000000000',
  'purpose=batch&purpose=constructor',
  'status=toString',
  'status=%ff%fe',
  'entity=%F0%9F%92%A9',
  'start=NaN&end=Infinity',
  'start=-8640000000000001',
  'format=csv',
  'group_by=__proto__',
  '=&=&==',
  `q=${'%41'.repeat(2000)}`,
]
const NUMBERS = [
  '1e400',
  '-1e400',
  '9007199254740993',
  '-0',
  '0.1e-400',
  '1'.repeat(400),
  '1E+',
  '01',
  '.5',
  'NaN',
]
const CONTENT_TYPES = [
  'application/json',
  'application/json',
  'application/json; charset=utf-16',
  'application/json;;;=',
  'text/plain',
  'application/x-www-form-urlencoded',
  'multipart/form-data',
  'multipart/form-data; boundary=',
  'multipart/form-data; boundary="x',
  `multipart/form-data; boundary=${'b'.repeat(300)}`,
  'application/vnd.api+json',
  '/',
  ';',
]

function below(dice: SeededRandom, limit: number): number {
  return dice.int(0, limit - 1)
}

function noise(dice: SeededRandom, length: number): string {
  return Array.from({ length }, () => String.fromCharCode(below(dice, 256))).join('')
}

/** Text stands for bytes here, as latin1. */
export function hostileRequest(seed: number, key: string, ids: readonly string[]): HostileRequest {
  const dice = seededRandom(seed)
  if (dice.chance(0.04)) return nonsense(dice)
  const method = dice.pick(METHODS)
  const path = pathOf(dice, ids)
  const headers = headersOf(dice, key)
  const carries = method !== 'HEAD' && (method === 'POST' || dice.chance(0.1))
  const [type, body] = carries ? bodyOf(dice, path, ids) : [null, '']
  if (type !== null) headers.push(`content-type: ${type}`)

  let complete = true
  let sent = body
  const framing = dice.next()
  if (carries && framing < 0.06) {
    // It promises more than it sends.
    headers.push(`content-length: ${body.length + 1 + below(dice, 5000)}`)
    complete = false
  } else if (carries && framing < 0.12) {
    const whole = dice.chance(0.5)
    headers.push('transfer-encoding: chunked')
    sent = `${body.length.toString(16)}\r\n${body}\r\n${whole ? '0\r\n\r\n' : dice.pick(['', 'zz\r\n', '-1\r\n', 'ffffffffffffffff\r\n'])}`
    if (body.length === 0) sent = whole ? '0\r\n\r\n' : 'zz\r\n'
    complete = whole
  } else if (carries && framing < 0.14) {
    headers.push(`content-length: ${dice.pick(['-1', '1e3', '0x10', '1, 2', '99999999999999999999', ''])}`)
    complete = false
  } else if (carries) headers.push(`content-length: ${body.length}`)

  const head = `${method} ${path} HTTP/1.1\r\n${headers.map((header) => `${header}\r\n`).join('')}\r\n`
  let bytes = Buffer.from(head + sent, 'latin1')
  // Bytes that no header may hold end the request as such.
  if (headers.some((header) => !isPrintable(header)) || !isPrintable(path)) complete = false
  if (head.length > 15_000) complete = false
  if (dice.chance(0.03)) {
    bytes = bytes.subarray(0, below(dice, bytes.length))
    complete = false
  }
  return { bytes, complete, bodiless: method === 'HEAD', drip: bytes.length < 2000 && dice.chance(0.02) }
}

/** What is no HTTP at all, or smuggles one request behind another. */
function nonsense(dice: SeededRandom): HostileRequest {
  const text = dice.pick([
    noise(dice, 1 + below(dice, 500)),
    '\r\n\r\n\r\n\r\n',
    'GET / HTTP/9.9\r\n\r\n',
    'GET /\r\n\r\n',
    'GE T / HTTP/1.1\r\n\r\n',
    'get / HTTP/1.1\r\nhost: x\r\n\r\n',
    `GET / HTTP/1.1\r\n${'a: b\r\n'.repeat(3000)}\r\n`,
    `GET / HTTP/1.1\r\n x: folded\r\n\r\n`,
    `${'A'.repeat(20_000)} / HTTP/1.1\r\n\r\n`,
    'POST /v1/batches HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{"a":1}',
    'POST /v1/batches HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n',
    'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
    'GET /v1/files HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n',
    'CONNECT elsewhere:443 HTTP/1.1\r\nhost: elsewhere:443\r\n\r\n',
  ])
  return { bytes: Buffer.from(text, 'latin1'), complete: false, bodiless: false, drip: false }
}

function pathOf(dice: SeededRandom, ids: readonly string[]): string {
  const id = (): string => (dice.chance(0.4) ? dice.pick(ids) : dice.pick(SEGMENTS))
  const path = dice.pick(ROUTES).replaceAll('ID', () => id())
  return dice.chance(0.3) ? `${path}?${dice.pick(QUERIES)}` : path
}

function headersOf(dice: SeededRandom, key: string): string[] {
  const headers = ['host: x', 'connection: close']
  const authorization = dice.next()
  if (authorization < 0.75) headers.push(`authorization: Bearer ${key}`)
  else if (authorization < 0.95)
    headers.push(
      `authorization: ${dice.pick(['Bearer', 'Bearer ', 'Basic eDp4', `bearer  ${key}`, `Bearer ${key}x`, `Bearer ${'k'.repeat(9000)}`, 'Bearer opk_local_\xff', `Bearer ${key.replace('local', '__proto__')}`])}`,
    )
  const odd = [
    () =>
      `range: ${dice.pick(['bytes=0-', 'bytes=-0', 'bytes=5-2', 'bytes=0-0,1-1', `bytes=${'9'.repeat(400)}-`, 'lines=1-2', 'bytes=-1e5'])}`,
    () => `if-range: ${dice.pick(['""', 'W/"x"', '\xff'])}`,
    () =>
      `idempotency-key: ${dice.pick(['', ' ', 'a', 'k'.repeat(300), '\xe9', '__proto__', `${below(dice, 5)}`])}`,
    () => `idempotency-mode: ${dice.pick(['implicit', 'replay', 'toString', ''])}`,
    () => `x-service-entity: ${dice.pick(['user:1', '__proto__', '\xff\xfe', 'e'.repeat(600), ''])}`,
    () => `x-stainless-retry-count: ${dice.pick(['1', '1e9', '-1', 'NaN', '1,1'])}`,
    () => `accept-language: ${dice.pick(['de', '*', `${'en;q=0.1,'.repeat(400)}fr`, 'xx-\xff', ';;;'])}`,
    () => `accept: ${dice.pick(['application/xml', '*/*;q=0', 'x'])}`,
    () => `accept-encoding: ${dice.pick(['gzip', 'identity;q=0', '\xff'])}`,
    () => `expect: ${dice.pick(['100-continue', '200-ok'])}`,
    () => `x-${dice.pick(NAMES)}: ${dice.pick(NAMES)}`,
    () => `${dice.pick(NAMES)}: 1`,
    () => `x-a: ${'a'.repeat(below(dice, 20_000))}`,
    () => `x-b: a\nb: c`,
    () => `content-encoding: gzip`,
    () => `cookie: ${noise(dice, 40)}`,
  ]
  for (let i = below(dice, 3); i > 0; i--) headers.push(dice.pick(odd)())
  return headers
}

/** A content type and a body that may go with it. */
function bodyOf(dice: SeededRandom, path: string, ids: readonly string[]): [string, string] {
  const form = path.startsWith('/v1/files') ? 0.8 : 0.05
  if (dice.chance(form)) return formOf(dice)
  if (dice.chance(0.15)) return [dice.pick(CONTENT_TYPES), noise(dice, below(dice, 300))]
  const type = dice.chance(0.85) ? 'application/json' : dice.pick(CONTENT_TYPES)
  return [type, jsonOf(dice, ids)]
}

function jsonOf(dice: SeededRandom, ids: readonly string[]): string {
  const shape = dice.next()
  if (shape < 0.08) {
    const depth = dice.pick([50, 1000, 200_000])
    return dice.chance(0.5) ? '['.repeat(depth) : '{"a":'.repeat(depth)
  }
  if (shape < 0.12) return '['.repeat(5000) + ']'.repeat(5000)
  if (shape < 0.16) return `{"x":"${'y'.repeat(1024 * 1024 + below(dice, 100))}"}`
  if (shape < 0.2)
    return dice.pick([
      '',
      'null',
      '[]',
      '1',
      '"x"',
      '\xef\xbb\xbf{}',
      '{"a":1}{"b":2}',
      '{\x00}',
      '{"a":"\xff"}',
    ])
  const fields = [
    'input_file_id',
    'endpoint',
    'completion_window',
    'metadata',
    'scope',
    'entity',
    'entity_type',
    'metric',
    'amount',
    'window',
    'action',
    'description',
    'notify_at',
    'url',
    'event_types',
    'since',
    ...NAMES,
  ]
  const known: Record<string, string> = {
    input_file_id: JSON.stringify(dice.pick(ids)),
    endpoint: '"/v1/chat/completions"',
    completion_window: '"24h"',
    scope: '"entity"',
    entity: '"user:1"',
    metric: '"cost_usd"',
    amount: '1',
    window: '"month"',
    url: '"https://example.com/"',
  }
  const value = (depth: number): string => {
    const kind = below(dice, depth > 3 ? 5 : 8)
    if (kind === 0) return dice.pick(NUMBERS)
    if (kind === 1) return JSON.stringify(dice.pick([...NAMES, ...SEGMENTS]))
    if (kind === 2) return dice.pick(['null', 'true', '[]', '{}', '""', '-1', '0', '1e308'])
    if (kind === 3) return JSON.stringify(dice.pick(ids))
    if (kind === 4) return '"\\ud800"'
    if (kind === 5) return `[${value(depth + 1)},${value(depth + 1)}]`
    return `{${JSON.stringify(dice.pick(fields))}:${value(depth + 1)}}`
  }
  const members = Object.entries(known).filter(() => dice.chance(0.7))
  const odd = Array.from({ length: below(dice, 4) }, () => [dice.pick(fields), value(0)] as const)
  const text = `{${[...members, ...odd].map(([name, text]) => `${JSON.stringify(name)}:${text}`).join(',')}}`
  return dice.chance(0.1) ? text.slice(0, below(dice, text.length)) : text
}

function formOf(dice: SeededRandom): [string, string] {
  const boundary = dice.pick(['b', 'x'.repeat(70), '--', "'()+_,-./:=?"])
  const filename = dice.pick([
    'in.jsonl',
    '../../etc/passwd',
    'a\r\nx-evil: 1',
    '\xff\xfe',
    '',
    'C:\\x',
    'n'.repeat(4000),
    '__proto__',
    'a";b="c',
    'a\x00b',
  ])
  const content = dice.pick([
    `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"x"}]}}\n`,
    `{"custom_id":"__proto__","method":"POST","url":"/v1/chat/completions","body":{"model":"__proto__","messages":[],"max_tokens":1e400}}\n`,
    '['.repeat(50_000),
    '{"custom_id":'.repeat(500),
    noise(dice, below(dice, 2000)),
    '\n'.repeat(5000),
    '',
    '\xef\xbb\xbf',
    '\xff\xfe{\x00}',
  ])
  const part = (name: string, file: boolean, text: string): string =>
    `--${boundary}\r\ncontent-disposition: form-data; name="${name}"${file ? `; filename="${filename}"` : ''}\r\n${dice.chance(0.2) ? 'content-type: \xff/\r\n' : ''}\r\n${text}\r\n`
  const parts = [
    () => part('purpose', false, dice.pick(['batch', 'batch', 'batch', '__proto__', 'p'.repeat(70_000)])),
    () => part('file', true, content),
    () => part(dice.pick([...NAMES, 'file', 'purpose', '', 'n'.repeat(500)]), dice.chance(0.5), content),
    () => `--${boundary}\r\n\r\nno header\r\n`,
    () => `--${boundary}\r\ncontent-disposition: nonsense\r\n\r\nx\r\n`,
    () => part('p', false, 'v').repeat(80),
  ]
  const chosen = dice.chance(0.6)
    ? [parts[0], parts[1]]
    : Array.from({ length: 1 + below(dice, 4) }, () => dice.pick(parts))
  const end = dice.chance(0.85) ? `--${boundary}--\r\n` : ''
  const text = chosen.map((make) => make?.() ?? '').join('') + end
  const cut = dice.chance(0.1) ? text.slice(0, below(dice, text.length)) : text
  return [`multipart/form-data; boundary="${boundary}"`, cut]
}

/** Whether every byte of it may stand in a header or a path. */
function isPrintable(text: string): boolean {
  return [...text].every((one) => (one >= ' ' && one <= '~') || one >= '\x80')
}
