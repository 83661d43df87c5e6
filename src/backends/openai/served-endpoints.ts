// What a server says of the endpoints of a model in its list of models. There is no standard for it:
// - `endpoints`, `supported_endpoints`: paths (this service and its simulator, LiteLLM, GitHub)
// - `capabilities`: words, or words that are true (Infinity, Mistral)
// - `type`: a word (LM Studio, Together)
import { type EndpointPath, endpointPathOf } from '../../domain/endpoint.ts'
import { isRecord } from '../json-record.ts'

const GENERATES: readonly EndpointPath[] = ['/v1/chat/completions', '/v1/completions', '/v1/responses']

const WORDS: Readonly<Record<string, readonly EndpointPath[]>> = {
  chat: GENERATES,
  completion: GENERATES,
  completion_chat: GENERATES,
  language: GENERATES,
  llm: GENERATES,
  vlm: GENERATES,
  embed: ['/v1/embeddings'],
  embedding: ['/v1/embeddings'],
  embeddings: ['/v1/embeddings'],
  rerank: ['/v1/rerank'],
  score: ['/v1/score'],
}

/** Null where the server says nothing that is understood. */
export function servedEndpoints(model: Readonly<Record<string, unknown>>): EndpointPath[] | null {
  const paths = [model.endpoints, model.supported_endpoints]
    .flatMap(words)
    .map(endpointPathOf)
    .filter((path) => path !== null)
  const said = [model.capabilities, model.type].flatMap(words)
  const meant = said.flatMap((word) => (Object.hasOwn(WORDS, word) ? (WORDS[word] ?? []) : []))
  const served = paths.length > 0 ? paths : meant
  return served.length === 0 ? null : [...new Set(served)]
}

function words(value: unknown): string[] {
  if (typeof value === 'string') return [value.toLowerCase()]
  if (Array.isArray(value)) return value.filter((one) => typeof one === 'string')
  return isRecord(value) ? Object.keys(value).filter((key) => value[key] === true) : []
}
