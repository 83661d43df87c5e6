// Adds an endpoint; there is no other way. The access that a key needs is part of the declaration: without it an
// endpoint does not compile, and the server does not start.
import type { FastifyInstance, FastifyReply, FastifyRequest, FastifySchema } from 'fastify'
import type { Registry } from 'prom-client'
import { type Static, type TObject, type TProperties, type TSchema, Type } from 'typebox'
import type { MasterKey } from '../blobs/master-key.ts'
import type { Scope } from '../domain/api-key.ts'
import type { AllowedPrefix } from '../domain/bucket-url.ts'
import { ApiError, type ErrorCode, type ErrorDetails, isErrorCode } from '../domain/errors.ts'
import type { Model } from '../domain/model.ts'
import type { Plan } from '../domain/plan.ts'
import type { GatherRules } from '../intake/gathered-requests.ts'
import type { Incoming, IncomingMemory } from '../intake/incoming.ts'
import { INLINE_BYTES_MAX, type InlineLines } from '../intake/inline-lines.ts'
import type { StreamingValidation } from '../intake/streaming-validation.ts'
import type { Ports } from '../store/store.ts'
import type { ServiceStatus } from '../wire/status.ts'
import { type Caller, callerOf } from './access/caller.ts'
import type { ProxyIdentity } from './access/proxy-identity.ts'
import { type Idempotency, refuseIdempotencyKey } from './request/idempotency.ts'
import type { HeavyReads, ProjectSlots } from './response/long-calls.ts'

export type App = FastifyInstance

/** A key with one of these scopes, any valid key, or no key at all. */
export type Access = readonly [Scope, ...Scope[]] | 'any key' | 'public'

/** Keywords of JSON Schema beside those of a shape: of its properties, and of the whole. */
export interface Rules {
  properties?: Readonly<Record<string, object>>
  allOf?: readonly object[]
}

export interface RouteDoc {
  /** A verb and a noun, for generated clients: `createBatch`. */
  operation: string
  summary: string
  description?: string
  /** The JSON of success, or another content type with its own shape. */
  answer: TSchema
  content_type?: string
  /** Other content types that a caller can request, each with its own shape. */
  also?: Readonly<Record<string, TSchema>>
  /** Whether the endpoint supports `Range`. */
  partial?: boolean
  /** Headers of this endpoint; the handler reads them itself. */
  headers?: TSchema
  /** The fields of the multipart form, for endpoints that take one instead of JSON. */
  form?: TSchema
  /** Further rules for the body and the query. Handlers check them: their errors say more than a shape's. */
  rules?: { body?: Rules; querystring?: Rules }
  /** Errors of this endpoint, beside those of every endpoint and of the objects that its path names. */
  errors?: readonly ErrorCode[]
}

export interface Declared {
  methods: readonly string[]
  url: string
  access: Access
  /** Null: the endpoint is not part of the API. */
  doc: RouteDoc | null
  /**
   * What a request is made of: `params`, `querystring` and `body`, each a typebox shape. An ID in a path may be any text:
   * text that is no ID is not found.
   */
  accepts: FastifySchema
  /** The handler gets a JSON body as the bytes that came. */
  raw?: true
  /** The handler reads a JSON body itself, while it arrives. */
  streams?: true
  /**
   * The JSON may bring the lines of a batch, or as `body` that of one line, which are kept as bytes, an empty array or object in
   * their place; or it is as a whole the body of one line.
   */
  takesLines?: true | 'body' | 'whole'
}

declare module 'fastify' {
  interface FastifyContextConfig {
    declared?: Declared
  }
  interface FastifyRequest {
    /** That came in the body. They take much memory: the handler calls `freeLines` once it has stored them. */
    lines: InlineLines | null
    /** The `body` of a request that is a line, as it came. */
    bytesOfBody: Buffer | null
    freeLines: () => void
    /** The answer in the record of the call, where the real one holds contents of files. */
    recorded: string | null
  }
}

/** The parameters in a path: `:name` is one segment, `*` the rest. */
type Params<Path extends string> = Path extends `${infer Head}/${infer Tail}`
  ? Params<Head> & Params<Tail>
  : Path extends `:${infer Name}`
    ? Record<Name, string>
    : Path extends '*'
      ? Record<'*', string>
      : unknown

interface Parts<Path extends string, Q extends TProperties, B extends TSchema> {
  Params: Params<Path>
  Querystring: Static<TObject<Q>>
  Body: Static<B>
}

type Call<Path extends string, Q extends TProperties, B extends TSchema> = FastifyRequest<Parts<Path, Q, B>>

/** A method, or several with a bar between them, and the path: `GET /v1/files/:file_id`. */
type At<Path extends string> = `${string} ${Path}`

export interface RouteSpec<A extends TSchema, Q extends TProperties, B extends TSchema> extends RouteDoc {
  answer: A
  access: Exclude<Access, 'public'>
  /** The parameters in the path, for the reference; without it, they are text. */
  params?: TProperties
  query?: Q
  body?: B
  takesLines?: Declared['takesLines']
  /** The call makes something each time, and would do so again for a repeated key: calls with a key are rejected. */
  takesNoKey?: true
  /** The handler gets the JSON body as a stream, in a scope whose parser leaves it one; `body` is for the reference alone. */
  streams?: true
}

type Answer<A extends TSchema> = Promise<Static<A> | FastifyReply>

/** The size of bodies of calls without a key. */
const PUBLIC_BODY_BYTES_MAX = 64 * 1024

/** Adds an endpoint that needs a key; the handler is given whose. Nothing that is not declared is accepted. */
export function route<
  Path extends string,
  A extends TSchema,
  Q extends TProperties = Record<never, never>,
  B extends TSchema = TSchema,
>(
  app: App,
  at: At<Path>,
  spec: RouteSpec<A, Q, B> & {
    handler: (request: Call<Path, Q, B>, caller: Caller, reply: FastifyReply) => Answer<NoInfer<A>>
  },
): void {
  const { access, params, query, body, takesLines, streams, takesNoKey, handler, ...doc } = spec
  const { methods, url } = placeOf(at)
  const parameters = {
    params: Type.Object(params ?? Object.fromEntries(namesIn(url).map((name) => [name, Type.String()]))),
    querystring: Type.Object(query ?? {}),
  }
  const accepts = { ...parameters, ...(body && { body }) }
  app.route<Parts<Path, Q, B>>({
    method: methods,
    url,
    handler(request, reply) {
      if (takesNoKey) refuseIdempotencyKey(request.headers)
      return handler(request, callerOf(request), reply)
    },
    ...(takesLines && { bodyLimit: INLINE_BYTES_MAX }),
    schema: { ...parameters, ...(body && !streams && { body }) },
    config: { declared: { methods, url, access, doc, accepts, streams, ...(takesLines && { takesLines }) } },
  })
}

/** Adds an endpoint that needs no key. Unknown parameters are ignored: load balancers and scrapers may add some. */
export function publicRoute<Path extends string, B extends TSchema = TSchema>(
  app: App,
  at: At<Path>,
  spec: {
    /** Without it, the endpoint is not part of the API. */
    doc?: RouteDoc
    body?: B
    raw?: true
    handler: (request: Call<Path, Record<never, never>, B>, reply: FastifyReply) => unknown
  },
): void {
  const { doc = null, body, raw, handler } = spec
  const { methods, url } = placeOf(at)
  const accepts = body ? { body } : {}
  app.route<Parts<Path, Record<never, never>, B>>({
    method: methods,
    url,
    handler,
    bodyLimit: PUBLIC_BODY_BYTES_MAX,
    schema: accepts,
    config: { declared: { methods, url, access: 'public', doc, accepts, raw } },
  })
}

function placeOf(at: string): { methods: string[]; url: string } {
  const [methods = '', url = ''] = at.split(' ')
  return { methods: methods.split('|'), url }
}

/** The errors of objects that a path names and that do not exist: `/v1/batches/:batch_id` has `batch_not_found`. */
export function notFoundIn(url: string): ErrorCode[] {
  const names = namesIn(url).map((name) => (name === '*' ? 'model' : name.replace(/_id$/, '')))
  return names.map((name) => `${name}_not_found`).filter(isErrorCode)
}

/** The parameters of a path; `*` is the rest of it. */
function namesIn(url: string): string[] {
  return [...url.matchAll(/:(\w+)|\*/g)].map(([whole, name]) => name ?? whole)
}

/** Throws the error where there is nothing. */
export function found<T>(value: T | undefined, code: ErrorCode, details?: ErrorDetails): T {
  if (value === undefined) throw new ApiError(code, undefined, details)
  return value
}

/** Every declared endpoint, for 405 answers, the OpenAPI document and tests. */
export class RouteTable {
  readonly #routes: { declared: Declared; methods: readonly string[]; url: string }[] = []

  /** Call this before the first endpoint is declared. */
  watch(app: App): void {
    app.addHook('onRoute', ({ method, url, config }) => {
      const declared = config?.declared
      if (!declared) throw new Error(`${String(method)} ${url} does not declare who may use it`)
      const methods = typeof method === 'string' ? [method] : method
      this.#routes.push({ declared, methods, url })
    })
  }

  get all(): readonly Declared[] {
    return [...new Set(this.#routes.map((route) => route.declared))]
  }

  /** The endpoint that answers this call, as it was declared. */
  patternOf(method: string, given: string): string | undefined {
    const path = withoutSlash(given)
    const routes = this.#routes.filter((route) => route.methods.includes(method))
    return (routes.find((route) => route.url === path) ?? routes.find((route) => matches(route.url, path)))
      ?.url
  }

  /** The methods of `path`, for the Allow header; empty if there is no such path. A wildcard is the last resort. */
  methodsOf(path: string): string[] {
    const all = this.#routes.filter((route) => matches(route.url, withoutSlash(path)))
    const named = all.filter((route) => !route.url.includes('*'))
    const exact = named.filter((route) => route.url === withoutSlash(path))
    const there = exact.length > 0 ? exact : named.length > 0 ? named : all
    return [...new Set(there.flatMap((route) => route.methods))].sort()
  }
}

/** The server finds an endpoint with and without a slash at the end. */
function withoutSlash(path: string): string {
  return path.length > 1 && path.endsWith('/') ? path.slice(0, -1) : path
}

/** `*` stands for the rest of the path, `:name` for one segment. */
function matches(pattern: string, path: string): boolean {
  const wanted = pattern.split('/')
  const given = path.split('/')
  const rest = wanted.at(-1) === '*'
  if (rest ? given.length < wanted.length : given.length !== wanted.length) return false
  return wanted.every(
    (segment, i) => segment === '*' || segment === given[i] || (segment[0] === ':' && given[i]),
  )
}

/** The parts of the process that its endpoints use. */
export interface ServiceDependencies extends Pick<Ports, 'store' | 'sealed' | 'clock'> {
  region: string
  /** Whether the database and the blob store answer; asked by operators. */
  storeHealth: () => Promise<NonNullable<ServiceStatus['service']>['stores']>
  /** The configuration in force, without its secrets. */
  settings: () => Record<string, unknown>
  /** The version of the service. */
  version: string
  /** Prepares the console soon after the start, and not only when its first page is asked for. */
  prepareConsole?: boolean
  plans: ReadonlyMap<string, Plan>
  models: ReadonlyMap<string, Model>
  file_bytes_max: number
  line_bytes_max: number
  /** The memory that content may take while it is received, where a folder's needs do not fit. */
  incomingMemory?: IncomingMemory | undefined
  /** Validates large uploads while they arrive. Without it they are validated once they are stored. */
  streamingValidation?: StreamingValidation
  /** How long creating a batch waits for a file that is being validated. */
  wait_for_file_ms: number
  /** How single requests are gathered into batches. */
  gather: GatherRules
  webhooks: {
    /** Whether a receiver may be in a private network and use plain HTTP. */
    allow_private_networks: boolean
    /** Encrypts the signing secrets. */
    master: MasterKey
  }
  /** The secrets of upstreams that tell by webhook of batches that have ended. */
  batchApiSecrets: () => readonly { upstream: string; secret: string }[]
  /** The parts of buckets that projects may use, as configured just now. */
  buckets?: () => readonly AllowedPrefix[]
  /** Called after background work was queued, so that workers in this process claim it at once. */
  wake: (news?: 'chunks') => void
  /** Whether the service can do its work, for /readyz. `isPolled`: a load balancer may have asked. */
  ready: (isPolled: boolean) => Promise<boolean>
  /** Since when no worker has run (Unix ms); null if that is less than a minute. */
  noWorkerSince?: () => number | null
  /** Counts calls; shown at /metrics. */
  metrics?: Registry
  /** The metrics are shown on another port instead. */
  metrics_elsewhere?: boolean
}

/** The parts that every endpoint is given; each takes the ones that it needs. */
export interface RouteDependencies extends ServiceDependencies {
  /** Says who a trusted proxy has signed in; undefined where none is configured. */
  proxyIdentity: ProxyIdentity | undefined
  /** The issuer of tokens; null where none are accepted. */
  issuer: string | null
  /** Counts a call against the rate limits; the server does so itself where a call comes with a key. */
  countCall: (caller: Caller, reply: FastifyReply) => Promise<void>
  idempotency: Idempotency
  incoming: Incoming
  reads: HeavyReads
  downloads: ProjectSlots
  streams: ProjectSlots
}
