// The lines of the input files of a run. Most are unlike all others of their batch. In some batches many are alike, within
// and across chunks, and the same requests come in other batches and projects, byte for byte. A text says what servers make
// of it: they refuse some, never have room for some, and batch APIs reject a whole file for some.
import { type DedupeMode, REASK_MODES, type Reask } from '../../src/domain/batch.ts'
import { DEFAULT_ENDPOINT, type EndpointPath, endpointPaths } from '../../src/domain/endpoint.ts'
import type { PlannedLine } from './plans.ts'
import { POISON } from './refused-texts.ts'
import { DECLARED_ENDPOINTS, SIM_ENDPOINTS, SIM_MODELS } from './run.ts'
import { type SeededRandom, seededRandom } from './seeded-random.ts'

export const TOKENS_MEAN = 50
export const OWN_PRIORITY = 3
/** Requests that several lines ask. The number is in the text, and decides about the rest. */
const COMMON_REQUESTS = 8
const COMMON_KINDS: Readonly<Record<number, string>> = { 2: '-refuse', 5: '-poison', 6: '-toxic' }
const TOXIC_CHANCE = 0.02

/** What the lines of a batch have in common. */
export interface BatchStyle {
  endpoint: EndpointPath
  dedupe: DedupeMode | null
  reask: Reask | null
  /** The share of its lines that ask a common request, and how many there are of these. */
  commonShare: number
  commonRequests: number
  /** Null: lines of one chunk name several. */
  model: string | null
  /** Whether the database refuses to store the usage of some lines, and their chunks end as errors. */
  hasPoison: boolean
}

export class InputLines {
  readonly #random: SeededRandom
  /** Of what lines have in common, so that it does not change the rest of a run. */
  readonly #styles: SeededRandom
  readonly #reasks: SeededRandom
  readonly #endpoints: SeededRandom

  constructor(seed: number, random: SeededRandom) {
    this.#random = random
    this.#styles = seededRandom(seed + 0xd0b1e)
    this.#reasks = seededRandom(seed + 0xa5c)
    this.#endpoints = seededRandom(seed + 0xe9d)
  }

  style(): BatchStyle {
    const random = this.#styles
    const dedupe = random.chance(0.45) ? random.pick(['all', 'all', 'repeatable'] as const) : null
    const hasCommon = random.chance(dedupe === null ? 0.3 : 0.95)
    const reask = this.#reask()
    const isOther = this.#endpoints.chance(0.7)
    const endpoint = this.#endpoints.pick(SIM_ENDPOINTS)
    // The API knows no other ones.
    const isDeclared = endpointPaths().includes(endpoint)
    return {
      // Chats alone are asked again.
      endpoint: isOther && reask === null && isDeclared ? endpoint : DEFAULT_ENDPOINT,
      dedupe,
      reask,
      commonShare: hasCommon ? random.pick([0.2, 0.6, 0.9]) : 0,
      commonRequests: random.int(1, COMMON_REQUESTS),
      model: random.chance(0.5) ? random.pick(SIM_MODELS).id : null,
      hasPoison: true,
    }
  }

  #reask(): Reask | null {
    const random = this.#reasks
    return random.chance(0.3) ? { max: random.int(1, 3), mode: random.pick(REASK_MODES) } : null
  }

  /** Line `number` of the batch `batch_name`, as it stands in the file and as it is expected to end. */
  line(
    batch_name: string,
    number: number,
    chunk: number,
    style: BatchStyle,
  ): { json: string; line: PlannedLine } {
    const random = this.#random
    const kind = random.chance(0.04) ? '-refuse' : random.chance(0.03) ? '-poison' : ''
    // Some lines name an unknown model and fail without being sent.
    const isUnknown = random.chance(0.03)
    const drawn = isUnknown ? 'unknown' : random.pick(SIM_MODELS).id
    const entity = random.chance(0.005) && style.hasPoison ? POISON : random.pick(['user:a', 'user:b'])
    const metadata = random.chance(0.5) ? { entity } : undefined
    const max_tokens = random.int(TOKENS_MEAN - 30, TOKENS_MEAN + 30)
    const common = this.#styles.chance(style.commonShare) ? this.#styles.int(1, style.commonRequests) : null
    const toxic = this.#styles.chance(TOXIC_CHANCE) ? '-toxic' : kind
    const asked =
      common === null
        ? { text: `l${number}${toxic}`, model: isUnknown ? drawn : (style.model ?? drawn), max_tokens }
        : commonRequest(common, style.model)
    const { text, ...rest } = asked
    const format = style.reask && {
      response_format: { type: 'json_schema', json_schema: { name: 's', schema: {} } },
    }
    const { endpoint } = style
    const declared = DECLARED_ENDPOINTS.find(({ path }) => path === endpoint)
    const prompt = declared ? { input: text } : { messages: [{ role: 'user', content: text }] }
    // Some lines say something that upstreams may set for all.
    const own = common === null && number % 5 === 0 ? { priority: OWN_PRIORITY } : {}
    const body = { ...rest, ...format, ...own, ...prompt }
    const custom_id = `l${number}`
    // Of a declared endpoint that generates, nobody reads a temperature.
    const isRepeatable = declared
      ? declared.usage.output === null
      : 'temperature' in rest && rest.temperature === 0
    return {
      json: JSON.stringify({ custom_id, method: 'POST', url: endpoint, body, metadata }),
      line: {
        custom_id,
        name: `${batch_name}/${custom_id}`,
        request: `${batch_name}/${text}`,
        entity: metadata?.entity ?? '',
        model: asked.model,
        isShared: style.dedupe === 'all' || (style.dedupe === 'repeatable' && isRepeatable),
        chunk,
      },
    }
  }
}

/** The same bytes wherever it is asked. */
function commonRequest(number: number, model: string | null) {
  return {
    text: `q${number}${COMMON_KINDS[number] ?? ''}`,
    model: model ?? SIM_MODELS[number % SIM_MODELS.length]!.id,
    max_tokens: TOKENS_MEAN + number,
    // Where only such lines are to share answers, some do.
    temperature: number % 3 === 1 ? 1 : 0,
  }
}
