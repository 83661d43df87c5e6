// The projected cost of a batch by model and entity, from the sums in the file's index: the file is not read, and
// the time depends on the number of groups, not of lines.
import { entityOf } from '../domain/entity.ts'
import type { Model } from '../domain/model.ts'
import { addSpend, NO_SPEND, plus, type Spend } from '../domain/spend.ts'
import { bytesPerToken } from '../domain/tokens.ts'
import { type FileIndex, projectedSpend, projectSums, type TokenSums } from '../jsonl/projection.ts'

/** Lines of one model for one entity. */
interface ProjectedGroup {
  /** Null where the lines name no model. */
  model: string | null
  entity: string | null
  lines: number
  /** Estimated with `bytes_per_token`. */
  input_tokens: number
  bytes_per_token: number
  output_tokens_max: number
  /** Projected. */
  spend: Spend
  /** False: the model has no price, or there is no such model, so these lines cost nothing. */
  priced: boolean
}

export interface BatchProjection {
  groups: readonly ProjectedGroup[]
  /** By entity, of lines whose entity is known. */
  byEntity: ReadonlyMap<string, Spend>
  total: Spend
  lines: number
}

/** The entity of lines that name none. */
export interface EntityDefaults {
  metadata: Readonly<Record<string, string>> | null
  header_entity: string | null
}

export function projectBatch(
  index: Pick<FileIndex, 'groups' | 'unattributed'>,
  models: ReadonlyMap<string, Model>,
  defaults: EntityDefaults,
): BatchProjection {
  const fallback = entityOf(null, defaults.metadata, defaults.header_entity)
  const named = index.groups.map((sums) => projectGroup(sums, sums.entity ?? fallback, models))
  // The index limits its number of entities; the entities of these lines are known when they are reserved.
  const rest = index.unattributed.map((sums) => projectGroup(sums, null, models))
  const groups = [...named, ...rest]
  const byEntity = new Map<string, Spend>()
  for (const { entity, spend } of groups) if (entity !== null) addSpend(byEntity, entity, spend)
  return {
    groups,
    byEntity,
    total: groups.reduce((sum, { spend }) => plus(sum, spend), NO_SPEND),
    lines: groups.reduce((sum, { lines }) => sum + lines, 0),
  }
}

function projectGroup(
  sums: TokenSums,
  entity: string | null,
  models: ReadonlyMap<string, Model>,
): ProjectedGroup {
  const model = sums.model === null ? undefined : models.get(sums.model)
  const tokens = model ? projectSums(sums, model) : { input_tokens: 0, output_tokens_max: 0 }
  return {
    model: sums.model,
    entity,
    lines: sums.lines,
    ...tokens,
    bytes_per_token: bytesPerToken(model?.seen),
    spend: projectedSpend(tokens, model),
    priced: model?.priced ?? false,
  }
}
