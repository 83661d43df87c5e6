// Entities and their types, as limits are looked up by.
import { entityType } from '../domain/entity.ts'

export function limitSubjects(entities: Iterable<string>): { entities: string[]; entity_types: string[] } {
  const list = [...entities]
  const types = list.map((entity) => entityType(entity)).filter((type) => type !== null)
  return { entities: list, entity_types: [...new Set(types)] }
}
