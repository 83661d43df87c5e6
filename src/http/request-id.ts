// Every answer says which request it belongs to, under our name for it and under the one that OpenAI clients read.

export function requestIdHeaders(id: string): Record<string, string> {
  return { 'x-service-request-id': id, 'x-request-id': id }
}
