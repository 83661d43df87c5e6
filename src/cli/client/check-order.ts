// Checks a batch before its input is uploaded: its window, its start, the models that its requests name, and whether limits
// by type count its entities. The service checks the same, but a large file is uploaded by then.
import { defaultWindow, durationMs } from '../../domain/days.ts'
import type { EndpointPath } from '../../domain/endpoint.ts'
import { entityOf, entityType } from '../../domain/entity.ts'
import { LimitObject } from '../../wire/limit.ts'
import { ModelObject } from '../../wire/model.ts'
import { QuotasObject } from '../../wire/project.ts'
import { Failure } from '../terminal/failure.ts'
import { humanTime } from '../terminal/terminal.ts'
import { type ApiClient, unless } from './client.ts'
import { asksOfFile } from './upload.ts'
import type { Watch } from './watch-batch.ts'

/**
 * The completion window of a command: the named one, else the previous one if the plan still offers it, else the
 * longest. Throws for a window that the plan does not offer.
 */
export async function windowFor(
  client: ApiClient,
  named: string | undefined,
  before?: string | undefined,
): Promise<string> {
  if (named !== undefined && named === before) return named
  const { plan, completion_windows: offered } = await client.get(QuotasObject, '/v1/quotas')
  const wanted = named ?? before
  if (wanted !== undefined && offered.some((one) => durationMs(one) === durationMs(wanted))) return wanted
  if (named === undefined || offered.length === 0) return named ?? defaultWindow(offered)
  throw new Failure(
    `--window ${named} is not a completion window of the plan "${plan}", which offers ${offered.join(', ')}; ` +
      `the operator of the service adds others to plans.${plan}.completion_windows in the configuration`,
  )
}

interface Terms {
  window: string
  /** The earliest start of the batch in Unix seconds. */
  start_after?: number | undefined
  metadata: Readonly<Record<string, string>>
}

/** Warns about terms that are probably mistakes. Throws where the window ends before the start. */
export async function checkTerms(
  client: ApiClient,
  { window, start_after, metadata }: Terms,
  { view, clock }: Pick<Watch, 'view' | 'clock'>,
  entities: readonly string[] = [],
): Promise<void> {
  if (start_after !== undefined) {
    const end = clock.now() + (durationMs(window) ?? 0)
    if (start_after * 1000 >= end)
      throw new Failure(
        `--not-before ${humanTime(start_after)} is after the end of the completion window (${window}); name an earlier time, or a longer window with --window`,
      )
    if (start_after * 1000 <= clock.now())
      view.message(`--not-before ${humanTime(start_after)} has passed: lines are sent at once.`)
  }
  const own = entityOf(null, metadata, null)
  const untyped = [...entities, ...(own === null ? [] : [own])].find((one) => entityType(one) === null)
  if (untyped === undefined) return
  const types = await limitedTypes(client)
  if (types.length > 0)
    view.message(
      `The entity "${untyped}" has no type, so that no limit on ${types.map((type) => `each ${type}`).join(' or ')} counts it; name it ${types[0]}:${untyped} if it is one.`,
    )
}

/** The entity types with limits; empty where the key may not read limits. */
async function limitedTypes(client: ApiClient): Promise<string[]> {
  const reading = client.list(LimitObject, '/v1/limits', LIMITS_READ, { scope: 'entity_type' })
  const limits = await unless([403], reading, [])
  return [...new Set(limits.flatMap(({ entity_type }) => entity_type ?? []))]
}

const LIMITS_READ = 100

/** Checks requests in the file `input` and terms of the batch. Throws where no model can answer any request. */
export async function checkOrder(
  client: ApiClient,
  { input, model, ...terms }: Terms & { input: string; model?: string | undefined },
  watch: Pick<Watch, 'view' | 'clock'>,
): Promise<void> {
  const { asks, entities } = await asksOfFile(input)
  const problems: string[] = []
  for (const ask of asks) {
    const problem = await problemOf(client, ask)
    if (problem === null) break
    problems.push(problem)
  }
  const [first] = problems
  if (first !== undefined && problems.length === asks.length)
    throw new Failure(first + (model === undefined ? HOW_TO_NAME_ONE : ''))
  await checkTerms(client, terms, watch, entities)
}

export const HOW_TO_NAME_ONE = '; --model NAME runs the file with one of them'

interface Ask {
  model: string
  endpoint: EndpointPath
}

/** Throws for a model that cannot answer: otherwise every line would fail. */
export async function checkModel(client: ApiClient, ask: Ask): Promise<void> {
  const problem = await problemOf(client, ask)
  if (problem !== null) throw new Failure(problem)
}

async function problemOf(client: ApiClient, { model, endpoint }: Ask): Promise<string | null> {
  const found = await unless([404], client.get(ModelObject, modelPath(model)), null)
  if (found === null) return `there is no model "${model}"; models here are ${await modelNames(client)}`
  const { endpoints } = found
  // An older service does not list endpoints.
  if (endpoints.length === 0 || endpoints.includes(endpoint)) return null
  return (
    `the model "${model}" does not serve ${endpoint}, but ${endpoints.join(', ')}; ` +
    `models here that serve it are ${await modelNames(client, endpoint)}`
  )
}

/** The path of a model; slashes in its ID stay slashes. */
export function modelPath(id: string): string {
  return `/v1/models/${id.split('/').map(encodeURIComponent).join('/')}`
}

const NAMED_MAX = 20

/** The names of the models for lines: `a, b and others`. */
export async function modelNames(client: ApiClient, endpoint?: EndpointPath): Promise<string> {
  const all = await client.list(ModelObject, '/v1/models', endpoint ? 10 * NAMED_MAX : NAMED_MAX + 1)
  const found = all.filter(({ endpoints }) => endpoint === undefined || endpoints.includes(endpoint))
  if (found.length === 0) return 'none'
  const names = found.slice(0, NAMED_MAX).map(({ id }) => id)
  return `${names.join(', ')}${found.length > NAMED_MAX ? ' and others ("offpeak models list")' : ''}`
}
