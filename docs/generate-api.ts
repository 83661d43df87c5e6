// docs/api-reference.md: every endpoint with its parameters, body, answer and errors, and every object with its fields,
// from the document that a service answers with at /openapi.json. It is part of the package, and not kept in the tree.
import { object, testServer } from '../test/support/test-server.ts'

type Json = Record<string, unknown>

const HEAD = `# API reference

Made from \`/openapi.json\` by \`npm run docs\`; edit the declarations of the routes and shapes. [api.md](api.md) explains
the API with examples, and [errors.md](errors.md) the codes.`

interface Operation {
  title: string
  text: string[]
  parameters: string[][]
  codes: ReadonlySet<string>
}

export async function apiReference(): Promise<string> {
  await using server = await testServer()
  const { json } = await server.call('GET', '/openapi.json', { key: null })
  const operations = Object.entries(object(json.paths)).flatMap(([path, methods]) =>
    Object.entries(object(methods)).map(([method, found]) => readOperation(method, path, object(found))),
  )
  const common = [
    'invalid_api_key',
    'rate_limit_exceeded',
    'internal_error',
    'content_damaged',
    'service_unavailable',
  ].filter((code) => operations.filter(({ codes }) => codes.has(code)).length > operations.length / 2)
  const parts = [
    HEAD,
    '## Endpoints',
    `Not repeated below, since most calls may get them: ${listed(common)}.`,
  ]
  for (const { title, text, parameters, codes } of operations) {
    const errors = [...codes].filter((code) => !common.includes(code))
    const sentences = errors.length === 0 ? text : [...text, `Errors: ${listed(errors)}.`]
    parts.push(`### ${title}`, sentences.join(' '))
    if (parameters.length > 0) parts.push(table(['parameter', 'in', 'values', ''], parameters))
  }
  parts.push('## Objects', 'A field with a `?` may be left out.')
  for (const [name, schema] of Object.entries(object(object(json.components).schemas)))
    parts.push(`### ${name}`, shape(object(schema)))
  return `${parts.join('\n\n')}\n`
}

function readOperation(method: string, path: string, operation: Json): Operation {
  const scopes = many(operation.security).flatMap((one) => Object.values(one).flat())
  const responses = Object.entries(object(operation.responses ?? {}))
  const body = contentOf(object(operation.requestBody ?? {}))
  const answers = responses
    .filter(([status]) => status.startsWith('2'))
    .map(([, one]) => contentOf(object(one)))
  const answer = [...new Set(answers.filter((one) => one !== ''))].join(' or ')
  const sentences = [
    `${operation.summary}.`,
    ...(operation.description === undefined ? [] : [String(operation.description)]),
    many(operation.security).length === 0
      ? 'No key is needed.'
      : scopes.length === 0
        ? 'Any key.'
        : `Scope ${listed(scopes.map(String), 'or')}.`,
    ...(body === '' ? [] : [`Body: ${body}.`]),
    ...(answer === '' ? [] : [`Answer: ${answer}.`]),
  ]
  const codes = responses.flatMap(([, response]) =>
    Object.values(object(object(response).content ?? {})).flatMap((media) =>
      Object.keys(object(object(media).examples ?? {})),
    ),
  )
  return {
    title: `${method.toUpperCase()} ${path}`,
    text: sentences,
    parameters: many(operation.parameters).map((one) => [
      `\`${one.name}\`${one.required === true ? '' : '?'}`,
      String(one.in),
      type(object(one.schema)),
      description(one) || description(object(one.schema)),
    ]),
    codes: new Set(codes),
  }
}

function contentOf({ content }: Json): string {
  return Object.entries(object(content ?? {}))
    .map(([media, found]) => {
      const shown = type(object(object(found).schema ?? {}))
      return media === 'application/json' ? shown : `\`${media}\`${shown === 'string' ? '' : ` ${shown}`}`
    })
    .join(', ')
}

/** The fields of an object, those of objects in it too. */
function shape(schema: Json): string {
  const rows = [...fields(schema, '')]
  const text = typeof schema.description === 'string' ? schema.description : ''
  if (rows.length === 0) return [text, type({ ...schema, title: undefined })].filter(Boolean).join(' ')
  return [text, table(['field', 'values', ''], rows)].filter(Boolean).join('\n\n')
}

function* fields(schema: Json, prefix: string): Generator<string[]> {
  const required = new Set(many<string>(schema.required))
  for (const [name, value] of Object.entries(object(schema.properties ?? {}))) {
    const field = object(value)
    const path = `${prefix}${name}`
    yield [`\`${path}\`${required.has(name) ? '' : '?'}`, type(field), description(field)]
    for (const [inner, suffix] of insides(field)) yield* fields(inner, `${path}${suffix}.`)
  }
}

function description({ description, anyOf }: Json): string {
  return String(description ?? many(anyOf).find((one) => 'description' in one)?.description ?? '')
}

/** The objects that a field holds, where they have no name of their own. */
function insides(field: Json): [Json, string][] {
  const items = field.items === undefined ? [] : insides(object(field.items)).concat(own(object(field.items)))
  return [
    ...own(field),
    ...many(field.anyOf).flatMap((one) => insides(one)),
    ...items.map(([inner, suffix]): [Json, string] => [inner, `[]${suffix}`]),
  ]
}

function own(field: Json): [Json, string][] {
  return field.properties === undefined ? [] : [[field, '']]
}

function type(schema: Json): string {
  const { $ref, anyOf, items } = schema
  if (typeof $ref === 'string') {
    const name = $ref.slice($ref.lastIndexOf('/') + 1)
    return `[${name}](#${name.toLowerCase()})`
  }
  if (Array.isArray(anyOf)) return [...new Set(many(anyOf).map(type))].join(' or ')
  if ('const' in schema) return `\`${schema.const}\``
  if (Array.isArray(schema.enum)) return schema.enum.map((one) => `\`${one}\``).join(', ')
  if (items !== undefined) return `list of ${type(object(items))}`
  return schema.type === undefined ? 'any' : [schema.type].flat().join(' or ')
}

function table(names: string[], rows: string[][]): string {
  const line = (cells: string[]): string =>
    `| ${cells.map((cell) => cell.replaceAll('|', '\\|').replaceAll('\n', ' ')).join(' | ')} |`
  return [line(names), `|${'---|'.repeat(names.length)}`, ...rows.map(line)].join('\n')
}

function listed(names: readonly string[], joint = 'and'): string {
  const quoted = names.map((name) => `\`${name}\``)
  return quoted.length < 2 ? quoted.join('') : `${quoted.slice(0, -1).join(', ')} ${joint} ${quoted.at(-1)}`
}

function many<T = Json>(value: unknown): T[] {
  return Array.isArray(value) ? value : []
}
