// What every answer says: which request it belongs to, under our name for it and under the one that OpenAI clients
// read; that its type is what it says; and that nobody on the way may keep it. A route that knows better says so.

export function responseHeaders(request_id: string): Record<string, string> {
  return {
    'x-service-request-id': request_id,
    'x-request-id': request_id,
    'x-content-type-options': 'nosniff',
    'cache-control': 'no-store',
  }
}
