// Checks answers by the JSON schema of their request, with the keywords that structured output uses. Other keywords,
// such as $ref, are not checked.
import { isRecord } from '../domain/json-record.ts'

/** The violations, each with its place; empty if there are none. */
export function schemaProblems(schema: unknown, value: unknown, path = '$'): string[] {
  if (!isRecord(schema)) return []
  const problems: string[] = []
  const expect = (holds: boolean, what: string): void => {
    if (!holds) problems.push(`${path}: ${what}`)
  }
  const types = [schema.type].flat().filter((type) => typeof type === 'string')
  if (types.length > 0 && !types.some((type) => isOfType(type, value)))
    return [`${path}: not of type ${types.join(' or ')}`]
  const same = (other: unknown): boolean => JSON.stringify(other) === JSON.stringify(value)
  if (Array.isArray(schema.enum)) expect(schema.enum.some(same), `not one of ${JSON.stringify(schema.enum)}`)
  if ('const' in schema) expect(same(schema.const), `not ${JSON.stringify(schema.const)}`)
  if (typeof value === 'number') {
    if (typeof schema.minimum === 'number') expect(value >= schema.minimum, `below ${schema.minimum}`)
    if (typeof schema.maximum === 'number') expect(value <= schema.maximum, `above ${schema.maximum}`)
  }
  if (typeof value === 'string') {
    if (typeof schema.minLength === 'number')
      expect([...value].length >= schema.minLength, `shorter than ${schema.minLength}`)
    if (typeof schema.maxLength === 'number')
      expect([...value].length <= schema.maxLength, `longer than ${schema.maxLength}`)
  }
  if (Array.isArray(value)) {
    if (typeof schema.minItems === 'number')
      expect(value.length >= schema.minItems, `fewer than ${schema.minItems} items`)
    if (typeof schema.maxItems === 'number')
      expect(value.length <= schema.maxItems, `more than ${schema.maxItems} items`)
    for (const [i, item] of value.entries())
      problems.push(...schemaProblems(schema.items, item, `${path}[${i}]`))
  }
  if (isRecord(value)) {
    const known = isRecord(schema.properties) ? schema.properties : {}
    for (const name of Array.isArray(schema.required) ? schema.required : [])
      expect(Object.hasOwn(value, String(name)), `"${name}" is missing`)
    for (const [name, item] of Object.entries(value)) {
      if (Object.hasOwn(known, name)) problems.push(...schemaProblems(known[name], item, `${path}.${name}`))
      else expect(schema.additionalProperties !== false, `"${name}" is not in the schema`)
    }
  }
  return problems
}

function isOfType(type: string, value: unknown): boolean {
  if (type === 'null') return value === null
  if (type === 'array') return Array.isArray(value)
  if (type === 'object') return isRecord(value)
  if (type === 'integer') return Number.isInteger(value)
  return typeof value === type
}
