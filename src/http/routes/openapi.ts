// GET /openapi.json: the OpenAPI 3.1 document, generated from the declarations that the server runs on: the shapes and
// scopes of each endpoint, and every error that it may answer, with examples. GET /config.schema.json: the schema of
// offpeak.yaml, which `npm run docs` writes.
import { readFile } from 'node:fs/promises'
import { type TSchema, Type } from 'typebox'
import { ERRORS, type ErrorCode, wireError } from '../../domain/errors.ts'
import { http } from '../../domain/http-module.ts'
import { isRecord } from '../../domain/json-record.ts'
import { STORABLE_PATTERN } from '../../domain/text.ts'
import { isMessagesPath, MessagesError, messagesError } from '../../wire/message-batch.ts'
import { ErrorEnvelope } from '../../wire/shape.ts'
import { CompatHeader } from '../access/caller.ts'
import { pagePolicy } from '../response/send-error.ts'
import { type App, type Declared, notFoundIn, publicRoute, type RouteDoc, type Rules } from '../route.ts'

type Json = Record<string, unknown>

const JSON_TYPE = 'application/json'
const CONFIG_SCHEMA = new URL('../../../docs/offpeak.schema.json', import.meta.url)

export function openapiRoute(app: App): void {
  let text: string | undefined
  publicRoute(app, 'GET /openapi.json', {
    doc: { operation: 'getOpenapi', summary: 'The OpenAPI document', answer: Type.Unknown() },
    async handler(_request, reply) {
      // Built at the first call, when every endpoint is declared.
      text ??= JSON.stringify(openapiDocument(app.routeTable.all))
      return reply.type('application/json; charset=utf-8').send(text)
    },
  })
}

export function configSchemaRoute(app: App): void {
  publicRoute(app, 'GET /config.schema.json', {
    doc: {
      operation: 'getConfigSchema',
      summary: 'The JSON Schema of the configuration file',
      description:
        'The schema of this version of the service, for editors. It contains no setting of this server.',
      answer: Type.Unknown(),
    },
    handler: async (_request, reply) =>
      reply.type('application/json; charset=utf-8').send(await readFile(CONFIG_SCHEMA, 'utf8')),
  })
}

export function openapiDocument(routes: readonly Declared[]): Json {
  const schemas: Json = {}
  const paths: Record<string, Json> = {}
  const described = routes.flatMap((declared) => {
    const { doc, methods: all, url } = declared
    if (doc === null) return []
    // OpenAPI has no parameter that spans segments: the wildcard is shown as an ordinary one.
    const path = url.replace(/:(\w+)/g, '{$1}').replace('*', '{model}')
    const methods = all.filter((each) => each !== 'HEAD')
    const { operation, answer } = doc
    return methods.map((name) => ({ declared, doc, operation, method: name, path, answer }))
  })
  for (const one of described) {
    const { declared, doc, method, path } = one
    const links = linksOf(one, described)
    paths[path] = { ...paths[path], [method.toLowerCase()]: operation(declared, doc, schemas, links) }
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Offpeak',
      version: '1',
      description: 'Batch inference: upload a JSONL file, create a batch, read what became of every line.',
    },
    paths,
    components: {
      schemas,
      securitySchemes: {
        api_key: {
          type: 'http',
          scheme: 'bearer',
          description: 'A key of this region. Where scopes are named, the key needs one of them.',
        },
      },
      headers: {
        'X-Service-Request-Id': {
          description: 'Names this call: its record is at `GET /v1/requests/{request_id}`.',
          schema: { type: 'string' },
        },
      },
    },
  }
}

function operation(declared: Declared, doc: RouteDoc, schemas: Json, links: Json | undefined): Json {
  const { access, url, accepts } = declared
  const security =
    access === 'public'
      ? []
      : access === 'any key'
        ? [{ api_key: [] }]
        : access.map((scope) => ({ api_key: [scope] }))
  const { body, params, querystring } = accepts
  const query = ruled(querystring, doc.rules?.querystring)
  const parameters = [
    ...parametersOf('path', params, schemas),
    ...parametersOf('query', storable(query), schemas),
    ...parametersOf('header', doc.headers, schemas),
    ...(access === 'public' ? [] : parametersOf('header', CompatHeader, schemas)),
  ]
  const success = {
    description: doc.summary,
    headers: requestIdHeader(),
    content: contents({ [doc.content_type ?? JSON_TYPE]: doc.answer, ...doc.also }, schemas),
    links,
  }
  return {
    operationId: doc.operation,
    tags: [url.split('/')[2] ?? 'service'],
    summary: doc.summary,
    description: doc.description,
    security,
    parameters: parameters.length > 0 ? parameters : undefined,
    ...requestBody(body, doc, schemas),
    responses: {
      200: success,
      ...(doc.partial
        ? { 206: success, 304: { description: 'Not modified', headers: requestIdHeader() } }
        : {}),
      ...apiErrors(codesOf(declared, doc), schemas, url),
    },
  }
}

function contents(shapes: Readonly<Record<string, TSchema>>, schemas: Json): Json {
  const entries = Object.entries(shapes).map(([type, shape]) => [type, { schema: hoisted(shape, schemas) }])
  return Object.fromEntries(entries)
}

function requestBody(body: unknown, { form, rules }: RouteDoc, schemas: Json): Json {
  const [type, schema] = form
    ? ['multipart/form-data', form]
    : [JSON_TYPE, storable(ruled(body, rules?.body))]
  if (schema === undefined) return {}
  const required = !allowsNull(schema)
  return { requestBody: { required, content: { [type]: { schema: hoisted(closed(schema), schemas) } } } }
}

/** Closes the objects of a body's schema: undeclared fields are rejected. */
function closed(schema: unknown): unknown {
  if (!isRecord(schema)) return schema
  if (Array.isArray(schema.anyOf)) return { ...schema, anyOf: schema.anyOf.map(closed) }
  return schema.type === 'object' ? { ...schema, additionalProperties: false } : schema
}

function ruled(schema: unknown, rules: Rules | undefined): unknown {
  if (rules === undefined || !isRecord(schema)) return schema
  if (Array.isArray(schema.anyOf)) return { ...schema, anyOf: schema.anyOf.map((part) => ruled(part, rules)) }
  if (!isRecord(schema.properties)) return schema
  const { properties: own = {}, ...whole } = rules
  const entries = Object.entries(schema.properties).map(([name, property]) => [
    name,
    isRecord(property) ? { ...property, ...own[name] } : property,
  ])
  return { ...schema, ...whole, properties: Object.fromEntries(entries) }
}

/** Adds the pattern of storable text to free texts in requests (domain/text.ts). */
function storable(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(storable)
  if (!isRecord(schema)) return schema
  if (schema.type === 'string') {
    const isFree = ['const', 'enum', 'pattern', 'format'].every((keyword) => schema[keyword] === undefined)
    return isFree ? { ...schema, pattern: STORABLE_PATTERN } : schema
  }
  return Object.fromEntries(
    Object.entries(schema).map(([name, part]) => [name, name === 'examples' ? part : storable(part)]),
  )
}

/** Whether a body may be null, which also stands for an omitted body. */
function allowsNull(schema: unknown): boolean {
  if (!isRecord(schema) || !Array.isArray(schema.anyOf)) return false
  return schema.anyOf.some((part) => isRecord(part) && part.type === 'null')
}

function parametersOf(place: 'path' | 'query' | 'header', shape: unknown, schemas: Json): Json[] {
  if (!isRecord(shape) || !isRecord(shape.properties)) return []
  const required = Array.isArray(shape.required) ? shape.required : []
  return Object.entries(shape.properties).map(([name, property]) => {
    const { description, ...schema } = isRecord(property) ? property : {}
    return {
      name: name === '*' ? 'model' : name,
      in: place,
      required: required.includes(name),
      description,
      schema: hoisted(schema, schemas),
    }
  })
}

/** All errors of an endpoint: its own, and those of its path, access, parameters and body. */
function codesOf({ url, access, accepts }: Declared, { errors = [], form, headers }: RouteDoc): ErrorCode[] {
  const codes: ErrorCode[] = [
    ...notFoundIn(url),
    ...errors,
    'internal_error',
    'content_damaged',
    'service_unavailable',
  ]
  if (has(accepts.querystring, 'starting_after')) codes.push('cursor_not_found')
  if (has(headers, 'Idempotency-Key'))
    codes.push('idempotency_key_reused', 'idempotency_in_progress', 'idempotency_cache_not_requested')
  if (access !== 'public') codes.push('invalid_api_key', 'rate_limit_exceeded')
  if (typeof access !== 'string') codes.push('missing_scope')
  if (access !== 'public') codes.push('invalid_request')
  if (accepts.body) codes.push('invalid_json')
  if (accepts.body || form) codes.push('unsupported_media_type', 'payload_too_large', 'request_timeout')
  return [...new Set(codes)]
}

function has(shape: unknown, property: string): boolean {
  return isRecord(shape) && isRecord(shape.properties) && Object.hasOwn(shape.properties, property)
}

function apiErrors(codes: readonly ErrorCode[], schemas: Json, url: string): Json {
  const responses: Json = {}
  for (const [status, same] of Map.groupBy(codes, (code) => ERRORS[code].status)) {
    const ofMessages = isMessagesPath(url)
    const answerOf = (code: ErrorCode): object =>
      ofMessages ? messagesError(wireError(code), status, 'req_…') : { error: wireError(code) }
    const examples = same.map((code) => [code, { value: answerOf(code) }])
    responses[status] = {
      description: http.STATUS_CODES[status],
      headers: requestIdHeader(),
      content: {
        [JSON_TYPE]: {
          schema: hoisted(ofMessages ? MessagesError : ErrorEnvelope, schemas),
          examples: Object.fromEntries(examples),
        },
      },
    }
  }
  return responses
}

function requestIdHeader(): Json {
  return { 'X-Service-Request-Id': { $ref: '#/components/headers/X-Service-Request-Id' } }
}

/** The plain JSON of a shape, in which every part with a title is moved to `schemas`. */
function hoisted(shape: TSchema | unknown, schemas: Json): unknown {
  if (Array.isArray(shape)) return shape.map((part) => hoisted(part, schemas))
  if (!isRecord(shape)) return shape
  const plain = Object.fromEntries(
    Object.entries(shape).map(([name, part]) => [
      name,
      // Examples are data, not schemas.
      name === 'examples' ? part : hoisted(part, schemas),
    ]),
  )
  if (typeof shape.title !== 'string') return plain
  schemas[shape.title] = plain
  return { $ref: `#/components/schemas/${shape.title}` }
}

interface Operation {
  operation: string
  method: string
  path: string
  answer: unknown
}

const ID = '$response.body#/id'

/**
 * The links of an operation's answer; undefined where it creates no object. A link passes the object's `id` to the path
 * of its other endpoints, and a file's ID to the creation of a batch. Generated clients and tests that call the API
 * step by step follow the links.
 */
function linksOf({ method, path, answer }: Operation, all: readonly Operation[]): Json | undefined {
  const made = method === 'POST' && !path.includes('{') ? objectOf(answer) : null
  if (made === null) return undefined
  // An `api_key` is the `key_id` of other endpoints.
  const parameter = `${made.slice(made.lastIndexOf('_') + 1)}_id`
  const links = all
    .filter((one) => one.path.startsWith(`${path}/{${parameter}}`) && !/\{.*\{/.test(one.path))
    .map(({ operation }) => [operation, { operationId: operation, parameters: { [parameter]: ID } }])
  const batch =
    made === 'file'
      ? [['createBatch', { operationId: 'createBatch', requestBody: { input_file_id: ID } }]]
      : []
  return Object.fromEntries([...links, ...batch])
}

/** The value of `object` in an answer; null where it has none, or no `id`. */
function objectOf(shape: unknown): string | null {
  if (!isRecord(shape)) return null
  if (Array.isArray(shape.anyOf)) return shape.anyOf.map(objectOf).find((found) => found !== null) ?? null
  const { id, object } = isRecord(shape.properties) ? shape.properties : {}
  return id !== undefined && isRecord(object) && typeof object.const === 'string' ? object.const : null
}

// GET /docs: the API reference as an interactive page, which the browser renders from /openapi.json. Everything
// that the page loads is served from here, and its content security policy allows nothing else.

const PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Offpeak API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<style>body { margin: 0 } .swagger-ui .info { margin: 24px 0 }</style>
</head>
<body>
<div id="docs"><p>This page needs JavaScript. The same in JSON: <a href="/openapi.json">/openapi.json</a></p></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
`

/** The script of the API reference's page, which does not store the API keys entered there. */
const START = `SwaggerUIBundle({
  url: '/openapi.json',
  dom_id: '#docs',
  deepLinking: true,
  validatorUrl: null,
  persistAuthorization: false,
  defaultModelsExpandDepth: 0,
  docExpansion: 'list',
})
`

/** The content security policy of the API reference's page, whose scripts set inline styles. */
const POLICY = pagePolicy("'unsafe-inline'")

const LIBRARY = [
  ['swagger-ui-bundle.js', 'text/javascript; charset=utf-8'],
  ['swagger-ui.css', 'text/css; charset=utf-8'],
] as const

const DAY_S = 86_400

export function docsRoutes(app: App): void {
  const serve = (url: string, type: string, content: () => Promise<string | Buffer>, max_age_s = 0): void =>
    publicRoute(app, `GET ${url}`, {
      handler: async (_request, reply) =>
        reply
          .headers({
            'content-security-policy': POLICY,
            'cache-control': max_age_s > 0 ? `public, max-age=${max_age_s}` : 'no-cache',
            'referrer-policy': 'no-referrer',
          })
          .type(type)
          .send(await content()),
    })
  serve('/docs', 'text/html; charset=utf-8', async () => PAGE)
  serve('/docs/start.js', 'text/javascript; charset=utf-8', async () => START)
  for (const [name, type] of LIBRARY) {
    const file = new URL(import.meta.resolve(`@fastify/swagger-ui/static/${name}`))
    serve(`/docs/${name}`, type, () => readFile(file), DAY_S)
  }
}
