// One server that answers for a model: the simulator, or anything that speaks OpenAI's chat completions.
import { SIMULATED_FAULTS, type SimulatedFault } from '../domain/simulated-fault.ts'
import type { OpenAiUpstream, SimUpstream } from './config.ts'
import { anyText, duration, fraction, integer, type Kind, milliseconds, oneOf, text } from './kinds.ts'
import type { Section } from './section.ts'

export type UpstreamSettings = SimUpstream | OpenAiSettings

/** The variable that holds the key is named here; secrets.ts reads it. */
export interface OpenAiSettings extends Omit<OpenAiUpstream, 'api_key'> {
  api_key_env: string | null
}

export const CONCURRENCY_MAX = 1024
export const TIMEOUT_MS = 600_000

const COUNT: Kind<number | null> = integer(1)
const VARIABLE: Kind<string | null> = text(/^[A-Za-z_][A-Za-z0-9_]*$/, 'the name of an environment variable')
const HEADER = text(/^[\t\x20-\x7e]*$/, 'the value of a header, printable ASCII')

/** What says where a request ends, and what becomes of its connection. */
const FRAMING = /^(connection|content-length|transfer-encoding)$/i

/** Read without slashes at its end. */
export const BASE_URL: Kind<string> = {
  expected: 'an http:// or https:// address up to /v1, without credentials or query',
  scalars: ['string'],
  read: (found) => {
    if (!/^https?:\/\/[^\s?#@]+$/.test(found) || !URL.canParse(found)) return undefined
    const trimmed = found.replace(/\/+$/, '')
    return trimmed.endsWith('/chat/completions') ? undefined : trimmed
  },
}

/** `model_id` is what the server calls the model unless it is told otherwise. */
export function readUpstream(section: Section, model_id: string): UpstreamSettings {
  const type = section.required('type', oneOf(['sim', 'openai']), null)
  if (type === null) section.acceptRest()
  return type === 'openai' ? readOpenAi(section, model_id) : readSim(section)
}

function readSim(section: Section): SimUpstream {
  const latency = section.values('latency_ms', milliseconds) ?? [0]
  const [min = 0, max = min] = latency
  if (latency.length > 2 || min > max) {
    section.problem('latency_ms', 'expected one number, or two as [least, most]')
  }
  return {
    type: 'sim',
    name: section.value('name', anyText, 'sim'),
    concurrency_max: section.value('concurrency_max', integer(1), CONCURRENCY_MAX),
    latency_ms: { min, max },
    faults: section.section('faults', readFaults),
    capacity: section.value('capacity', COUNT, null),
    context_window: section.value('context_window', COUNT, null),
  }
}

function readFaults(section: Section): Partial<Record<SimulatedFault, number>> {
  const faults: Partial<Record<SimulatedFault, number>> = {}
  let sum = 0
  for (const fault of SIMULATED_FAULTS) {
    const share = section.value(fault, fraction, 0)
    if (share > 0) faults[fault] = share
    sum += share
  }
  if (sum > 1 + 1e-9) section.problem(null, `expected fractions that add up to 1 at most, found ${sum}`)
  return faults
}

function readOpenAi(section: Section, model_id: string): OpenAiSettings {
  const base_url = section.required('base_url', BASE_URL, 'http://127.0.0.1')
  return {
    type: 'openai',
    name: section.value('name', anyText, addressOf(base_url)),
    concurrency_max: section.value('concurrency_max', integer(1), CONCURRENCY_MAX),
    base_url,
    api_key_env: section.value('api_key_env', VARIABLE, null),
    model: section.value('model', anyText, model_id),
    timeout_ms: section.value('timeout', duration(1), TIMEOUT_MS),
    headers: section.section('headers', readHeaders),
  }
}

function readHeaders(section: Section): Record<string, string> {
  const headers: Record<string, string> = {}
  for (const name of section.names()) {
    if (!/^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/.test(name)) section.problem(name, 'is no name of a header')
    else if (FRAMING.test(name)) section.problem(name, 'is a header that the service sets itself')
    headers[name] = section.required(name, HEADER, '')
  }
  return headers
}

/** A base URL as a name: host, port and path. */
export function addressOf(base_url: string): string {
  return base_url.replace(/^https?:\/\//, '')
}
