// What a batch may cost at most, by model and entity, from the sums that validation kept: the file itself is
// not read, and it takes as long as there are groups, not lines.

import { entityOf } from '../domain/entity.ts'
import type { Model } from '../domain/model.ts'
import { addSpend, NO_SPEND, plus, type Spend } from '../domain/spend.ts'
import { isStorable } from '../domain/storable-text.ts'
import { bytesPerToken } from '../domain/tokens.ts'
import type { FileIndex } from '../jsonl/file-index.ts'
import { projectedSpend, projectSums, type TokenSums } from '../jsonl/projection.ts'

/** Lines of one model for one entity. */
export interface ProjectedGroup {
  /** Null where the lines name none. */
  model: string | null
  entity: string | null
  lines: number
  /** Estimated, at so many bytes a token. */
  input_tokens: number
  bytes_per_token: number
  output_tokens_max: number
  /** At most. */
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

/** Whom lines are for that do not say it themselves. */
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
  const named = index.groups.map((sums) => projectGroup(sums, entityOfGroup(sums.entity, fallback), models))
  // Beyond so many entities the file's index knows no more whose lines these are; reserving will.
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

/** Lines of a name that cannot be stored, which older versions let pass, end without being sent. */
function entityOfGroup(entity: string | null, fallback: string | null): string | null {
  return entity === null || isStorable(entity) ? (entity ?? fallback) : null
}
