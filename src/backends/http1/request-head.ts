// What every request to a server begins with; only its length differs.

const NAME = /^[!#$%&'*+.^_`|~0-9a-z-]+$/
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/
/** They say where a request ends and what becomes of its connection, which is not for others to decide. */
const OURS: ReadonlySet<string> = new Set(['connection', 'content-length', 'transfer-encoding'])

const END = 'connection: keep-alive\r\ncontent-length: '

/**
 * The head of a request up to its length, which is to be added with the blank line behind it. `headers` by names in
 * lower case. Throws a TypeError, which quotes no value, for one that cannot be sent.
 */
export function requestHead(
  authority: string,
  path: string,
  headers: ReadonlyMap<string, string>,
  method: 'GET' | 'POST' = 'POST',
): Buffer {
  let head = `${method} ${path} HTTP/1.1\r\n`
  if (!headers.has('host')) head += `host: ${authority}\r\n`
  for (const [name, value] of headers) {
    if (!NAME.test(name)) throw new TypeError(`the header name ${JSON.stringify(name)} cannot be sent`)
    if (OURS.has(name)) throw new TypeError(`the header ${name} is set by the service itself`)
    if (!VALUE.test(value)) throw new TypeError(`the value of the header ${name} cannot be sent`)
    head += `${name}: ${value}\r\n`
  }
  return Buffer.from(head + END, 'latin1')
}

/** The head with the trace context of one request. */
export function withTraceparent(head: Buffer, traceparent: string): Buffer {
  const at = head.length - END.length
  return Buffer.concat([
    head.subarray(0, at),
    Buffer.from(`traceparent: ${traceparent}\r\n`, 'latin1'),
    head.subarray(at),
  ])
}
