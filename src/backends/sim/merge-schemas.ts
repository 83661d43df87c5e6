// Folds two schemas that must both hold into one, as far as that can be said in one schema.
import { isRecord } from '../json-record.ts'
import type { GenerationBudget } from './generation-budget.ts'

export type Schema = Record<string, unknown>

const HIGHER = new Set(['minimum', 'exclusiveMinimum', 'minLength', 'minItems', 'minProperties'])
const LOWER = new Set(['maximum', 'exclusiveMaximum', 'maxLength', 'maxItems', 'maxProperties'])

/** A schema whose instances both accept; where that cannot be expressed, `second` has its way. */
export function mergeSchemas(first: Schema, second: Schema, budget: GenerationBudget): Schema {
  budget.steps(sizeOf(first) + sizeOf(second))
  const merged: Schema = { ...first }
  for (const [key, value] of Object.entries(second)) {
    merged[key] = Object.hasOwn(first, key) ? both(key, first[key], value, budget) : value
  }
  return merged
}

function both(key: string, first: unknown, second: unknown, budget: GenerationBudget): unknown {
  budget.steps(sizeOf(first) + sizeOf(second))
  if (typeof first === 'number' && typeof second === 'number') {
    if (HIGHER.has(key)) return Math.max(first, second)
    if (LOWER.has(key)) return Math.min(first, second)
  }
  if (key === 'required' && Array.isArray(first) && Array.isArray(second)) {
    return [...new Set([...first, ...second])]
  }
  if (key === 'enum' && Array.isArray(first) && Array.isArray(second)) {
    const textOf = (value: unknown): string => {
      const text = JSON.stringify(value) ?? ''
      budget.steps(text.length >> 3)
      return text
    }
    const kept = new Set(second.map(textOf))
    return first.filter((value) => kept.has(textOf(value)))
  }
  if (key === 'type') return bothTypes(first, second)
  if (key === 'properties' && isRecord(first) && isRecord(second)) return bothProperties(first, second)
  if (key === 'additionalProperties' && (first === false || second === false)) return false
  return second
}

function sizeOf(value: unknown): number {
  if (Array.isArray(value)) return value.length
  return isRecord(value) ? Object.keys(value).length : 1
}

function bothTypes(first: unknown, second: unknown): unknown {
  const other = [second].flat()
  const kept = [first].flat().flatMap((type) => {
    if (other.includes(type)) return [type]
    // Every integer is a number.
    const narrowed =
      (type === 'number' && other.includes('integer')) || (type === 'integer' && other.includes('number'))
    return narrowed ? ['integer'] : []
  })
  return kept.length === 1 ? kept[0] : kept
}

function bothProperties(first: Schema, second: Schema): Schema {
  const merged: Schema = { ...first }
  for (const [name, schema] of Object.entries(second)) {
    const twice = Object.hasOwn(first, name)
    merged[name] = twice ? { allOf: [first[name], schema] } : schema
  }
  return merged
}
