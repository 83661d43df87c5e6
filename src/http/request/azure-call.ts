// Makes the calls of Azure OpenAI's clients the calls of OpenAI's API that they stand for, before they are routed: they
// have the same endpoints under `/openai`, the key in the header `api-key`, and a version of the API in the query.
import type { IncomingMessage } from 'node:http'

/** Only what these clients call: whoever closes paths at a proxy has closed all other endpoints under `/v1`. */
const AZURE_PATH =
  /^\/openai(?:\/v1|\/deployments\/[^/?]+)?(\/(?:files|uploads|batches|models|chat|completions|embeddings|responses)(?:\/[^?]*)?)(?:\?(.*))?$/

/** The URL to route. Of a call in Azure's form, the headers become those of OpenAI's clients. */
export function urlOfCall({ url = '/', headers }: Pick<IncomingMessage, 'url' | 'headers'>): string {
  const [, path, query = ''] = AZURE_PATH.exec(url) ?? []
  if (path === undefined) return url
  const key = headers['api-key']
  if (typeof key === 'string') headers.authorization ??= `Bearer ${key}`
  // Azure has the statuses and fields of OpenAI.
  headers['x-offpeak-compat'] ??= 'openai'
  const rest = query.split('&').filter((pair) => !/^api-version(=|$)/.test(pair))
  return `/v1${path}${rest.join('&') === '' ? '' : `?${rest.join('&')}`}`
}
