// The opening hours that a batch depends on: those of the models that its lines name.
import type { Model, ModelHours } from '../domain/model.ts'
import type { BatchRow } from '../store/schema.ts'

/** None where its models are not known, or each is always open. */
export function hoursOf(batch: Pick<BatchRow, 'models'>, models: ReadonlyMap<string, Model>): ModelHours[] {
  return modelsOf(batch).flatMap((id) => models.get(id)?.hours ?? [])
}

export function modelsOf({ models }: Pick<BatchRow, 'models'>): string[] {
  return models === null ? [] : JSON.parse(models)
}
