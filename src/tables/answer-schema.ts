// The JSON Schema that answers follow: a column for each field.
import Type from 'typebox'
import { Value } from 'typebox/value'
import type { Column, ColumnType } from './table.ts'

const ObjectSchema = Type.Object({
  properties: Type.Record(Type.String(), Type.Unknown(), { minProperties: 1 }),
  required: Type.Optional(Type.Array(Type.String())),
  additionalProperties: Type.Optional(Type.Unknown()),
})

export interface AnswerField extends Column {
  required: boolean
  nullable: boolean
}

export interface AnswerSchema {
  schema: object
  /** A column for each property, in the order of the schema. */
  fields: readonly AnswerField[]
}

/** Every row has every column: with more of them, a small schema would make a large table. */
export const FIELDS_MAX = 1_000

/** Null where it is not the schema of an object with properties, or has more of them than FIELDS_MAX. */
export function answerSchema(schema: unknown): AnswerSchema | null {
  if (!Value.Check(ObjectSchema, schema)) return null
  const { properties } = schema
  if (Object.keys(properties).length > FIELDS_MAX) return null
  const required = new Set(schema.required)
  const fields = Object.entries(properties).map(([name, field]) => ({
    name,
    type: typeOf(field),
    required: required.has(name),
    nullable: typeOf(field) === 'json' || kindsOf(field).includes('null'),
  }))
  return { schema, fields }
}

const SCALARS: readonly string[] = ['string', 'integer', 'number', 'boolean']

function typeOf(field: unknown): ColumnType {
  const kinds = kindsOf(field).filter((kind) => kind !== 'null')
  const [kind] = kinds
  if (kinds.length === 1 && isScalar(kind)) return kind
  // An enum often has no type.
  const choices: unknown =
    typeof field === 'object' && field !== null && 'enum' in field ? field.enum : undefined
  return Array.isArray(choices) && choices.every((choice) => typeof choice === 'string') ? 'string' : 'json'
}

function kindsOf(field: unknown): readonly unknown[] {
  const type = typeof field === 'object' && field !== null && 'type' in field ? field.type : undefined
  return Array.isArray(type) ? type : type === undefined ? [] : [type]
}

function isScalar(kind: unknown): kind is ColumnType {
  return typeof kind === 'string' && SCALARS.includes(kind)
}
