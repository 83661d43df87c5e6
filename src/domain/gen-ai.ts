// Names that OpenTelemetry's conventions for generative AI give to operations and providers, for traces and metrics.
import { type BuiltInPath, type EndpointPath, isBuiltIn } from './endpoint.ts'

/** `gen_ai.operation.name` by endpoint; the conventions do not have the last two. */
const OPERATIONS: Readonly<Record<BuiltInPath, string>> = {
  '/v1/chat/completions': 'chat',
  '/v1/completions': 'text_completion',
  '/v1/embeddings': 'embeddings',
  '/v1/responses': 'chat',
  '/v1/messages': 'chat',
  '/v1/rerank': 'rerank',
  '/v1/score': 'score',
}

export function operationOf(endpoint: EndpointPath): string {
  return isBuiltIn(endpoint) ? OPERATIONS[endpoint] : endpoint.slice('/v1/'.length)
}

/** `gen_ai.provider.name` by the end of a host's name. */
const PROVIDERS: readonly (readonly [host: RegExp, provider: string])[] = [
  [/\.openai\.com$/, 'openai'],
  [/\.openai\.azure\.com$/, 'azure.ai.openai'],
  [/\.services\.ai\.azure\.com$/, 'azure.ai.inference'],
  [/\.anthropic\.com$/, 'anthropic'],
  [/^bedrock.*\.amazonaws\.com$/, 'aws.bedrock'],
  [/^generativelanguage\.googleapis\.com$/, 'gcp.gemini'],
  [/aiplatform\.googleapis\.com$/, 'gcp.vertex_ai'],
  [/\.ml\.cloud\.ibm\.com$/, 'ibm.watsonx.ai'],
  [/\.cohere\.(com|ai)$/, 'cohere'],
  [/\.deepseek\.com$/, 'deepseek'],
  [/\.groq\.com$/, 'groq'],
  [/\.mistral\.ai$/, 'mistral_ai'],
  [/\.perplexity\.ai$/, 'perplexity'],
  [/\.x\.ai$/, 'x_ai'],
]

/** The provider of an address; null if unknown. */
export function providerAt(base_url: string): string | null {
  const { hostname } = new URL(base_url)
  return PROVIDERS.find(([host]) => host.test(hostname))?.[1] ?? null
}

/** The provider `known` by its address, or else the provider that defined the endpoint's API. */
export function providerOf(known: string | null, endpoint: EndpointPath): string {
  return known ?? (endpoint === '/v1/messages' ? 'anthropic' : 'openai')
}
