// Headers of every response: the request ID, under our name and under the one that OpenAI clients read; no content
// sniffing; no caching. A route may set others.

export function responseHeaders(request_id: string): Record<string, string> {
  return {
    'x-service-request-id': request_id,
    'x-request-id': request_id,
    'x-content-type-options': 'nosniff',
    'cache-control': 'no-store',
  }
}
