/**
 * Headers of every response: the request ID, under our name and under the one that OpenAI clients read; no content
 * sniffing; no caching. A route may set others.
 */
export function responseHeaders(request_id: string): Record<string, string> {
  return {
    'x-service-request-id': request_id,
    'x-request-id': request_id,
    'x-content-type-options': 'nosniff',
    'cache-control': 'no-store',
  }
}

/** A filename in a header (RFC 6266): in ASCII for old clients, and exact for the others. */
export function attachment(filename: string): string {
  const plain = filename.replace(/[^\x20-\x7e]|["\\%]/g, '_')
  const exact = encodeURIComponent(filename).replace(
    /['()*]/g,
    (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `attachment; filename="${plain}"; filename*=UTF-8''${exact}`
}
