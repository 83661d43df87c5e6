// The JSON Schema that answers follow: the `response_format` of requests, and a column for each field.
import { readFile } from 'node:fs/promises'
import Type from 'typebox'
import { Value } from 'typebox/value'
import { Failure } from '../terminal/failure.ts'
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

/** Reads the schema of an object from a JSON file. */
export async function readSchema(path: string): Promise<AnswerSchema> {
  let schema: unknown
  try {
    schema = JSON.parse((await readFile(path, 'utf8')).replace(/^\ufeff/, ''))
  } catch (error) {
    if (error instanceof SyntaxError) throw new Failure(`${path} is not JSON: ${error.message}`)
    throw error
  }
  if (!Value.Check(ObjectSchema, schema)) {
    throw new Failure(
      `${path} is not the schema of an object: it needs "properties", for example {"type": "object", "properties": {"label": {"type": "string"}}}`,
    )
  }
  const { properties, required = [] } = schema
  const fields = Object.entries(properties).map(([name, field]) => ({
    name,
    type: typeOf(field),
    required: required.includes(name),
    nullable: typeOf(field) === 'json' || kindsOf(field).includes('null'),
  }))
  return { schema, fields }
}

/** `strict` only where OpenAI's rules for it are met; other servers follow the schema either way. */
export function responseFormat({ schema, fields }: AnswerSchema): object {
  const closed = 'additionalProperties' in schema && schema.additionalProperties === false
  const strict = closed && fields.every(({ required }) => required)
  return { type: 'json_schema', json_schema: { name: 'answer', ...(strict ? { strict } : {}), schema } }
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
