// Checks each part of a request against its typebox shape. Nothing is coerced or dropped, except that the
// whole numbers of a query, which can only arrive as text, are read as numbers first.
import type { FastifySchemaCompiler } from 'fastify'
import { IsSchema, type TSchema } from 'typebox'
import { Compile } from 'typebox/compile'
import { explain } from './explain.ts'

const WHOLE: Record<string, string> = {
  body: 'The request body',
  querystring: 'The query',
  params: 'The path',
  headers: 'The headers',
}

export const checkShape: FastifySchemaCompiler<unknown> = ({ schema, httpPart }) => {
  if (!IsSchema(schema)) throw new TypeError(`the ${httpPart} of an endpoint has no shape`)
  const shape = Compile(schema)
  const integers = httpPart === 'querystring' ? integersOf(schema) : []
  return (given: unknown) => {
    const value = integers.length > 0 ? withNumbers(given, integers) : given
    if (shape.Check(value)) return { value }
    return { error: explain(shape.Errors(value), value, WHOLE[httpPart ?? ''] ?? 'It') }
  }
}

function integersOf(schema: TSchema): string[] {
  const properties: unknown = Reflect.get(schema, 'properties')
  if (typeof properties !== 'object' || properties === null) return []
  return Object.entries(properties).flatMap(([name, property]) =>
    Reflect.get(Object(property), 'type') === 'integer' ? [name] : [],
  )
}

function withNumbers(query: unknown, integers: readonly string[]): unknown {
  if (typeof query !== 'object' || query === null) return query
  const entries = Object.entries(query).map(([name, value]) => {
    const isNumber = integers.includes(name) && typeof value === 'string' && /^-?\d{1,15}$/.test(value)
    return [name, isNumber ? Number(value) : value]
  })
  return Object.fromEntries(entries)
}
