// The models that lines may name, each with the upstreams that answer for it.
import type { Model } from '../domain/model.ts'
import { FREE, type Price } from '../domain/money.ts'
import { flag, integer, type Kind, pricePicos, text } from './kinds.ts'
import { readUpstream, type UpstreamSettings } from './read-upstream.ts'
import type { Section } from './section.ts'

export interface ModelSettings {
  model: Model
  upstreams: readonly UpstreamSettings[]
}

const MODEL_ID = text(/^[\x21-\x7e]{1,200}$/, 'a name of up to 200 printable characters without spaces')

const TOKENS: Kind<number | null> = integer(1)

/** `created`: Unix seconds. Without `models`, the simulator's one model is all there is. */
export function readModels(root: Section, created: number): ModelSettings[] {
  const first = new Map<string, number>()
  const models = root.items('models', (section, index) => {
    const read = readModel(section, created)
    const earlier = first.get(read.model.id)
    if (earlier === undefined) first.set(read.model.id, index)
    else if (section.has('id')) section.problem('id', `${read.model.id} is already models[${earlier}]`)
    return read
  })
  return models ?? [simulated(created)]
}

function readModel(section: Section, created: number): ModelSettings {
  const id = section.required('id', MODEL_ID, 'model')
  const context_window = section.value('context_window', TOKENS, null)
  const max_output_tokens = section.value('max_output_tokens', TOKENS, null)
  if (context_window !== null && max_output_tokens !== null && max_output_tokens > context_window) {
    section.problem('max_output_tokens', `is more than the context_window of ${context_window}`)
  }
  const priced = section.has('price')
  const price = section.section('price', (part): Price => {
    if (!priced) {
      part.value('input_per_mtok', pricePicos, 0)
      part.value('output_per_mtok', pricePicos, 0)
      return FREE
    }
    return {
      input_picos: part.required('input_per_mtok', pricePicos, 0),
      output_picos: part.required('output_per_mtok', pricePicos, 0),
    }
  })
  const supports = section.section('supports', (part) => ({
    structured_output: part.value('structured_output', flag, true),
    tools: part.value('tools', flag, true),
  }))
  const upstreams = section.items('upstreams', (upstream) => readUpstream(upstream, id))
  if (upstreams === null && !section.has('upstreams')) {
    section.problem('upstreams', `is missing; ${id} needs at least one server to answer it`)
  }
  return {
    model: { id, context_window, max_output_tokens, price, priced, supports, created },
    upstreams: distinctNames(upstreams ?? []),
  }
}

/** Two upstreams of one model may be alike; their names must not be. */
function distinctNames(upstreams: readonly UpstreamSettings[]): UpstreamSettings[] {
  const seen = new Map<string, number>()
  return upstreams.map((upstream) => {
    const count = (seen.get(upstream.name) ?? 0) + 1
    seen.set(upstream.name, count)
    return count === 1 ? upstream : { ...upstream, name: `${upstream.name}#${count}` }
  })
}

/** sim-1, so that a service without a configuration answers something. */
function simulated(created: number): ModelSettings {
  return {
    model: {
      id: 'sim-1',
      context_window: 131_072,
      max_output_tokens: 4096,
      price: { input_picos: 100_000, output_picos: 400_000 },
      priced: true,
      supports: { structured_output: true, tools: true },
      created,
    },
    upstreams: [
      {
        type: 'sim',
        name: 'sim',
        concurrency_max: 1024,
        latency_ms: { min: 20, max: 20 },
        faults: {},
        capacity: null,
        context_window: null,
      },
    ],
  }
}
