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

/** The access to an endpoint: a key with one of these scopes, any valid key, or no key. */
export type Access = readonly [Scope, ...Scope[]] | 'any key' | 'public'

/** Keywords of JSON Schema, beyond those of a shape, for its properties and for the whole. */
export interface Rules {
  properties?: Readonly<Record<string, object>>
  allOf?: readonly object[]
}

export interface RouteDoc {
  /** The operation in generated clients, a verb and a noun: `createBatch`. */
  operation: string
  summary: string
  description?: string
  /** The shape of a successful answer, JSON unless `content_type` is another type. */
  answer: TSchema
  content_type?: string
  /** Further content types that a caller can request, each with its shape. */
  also?: Readonly<Record<string, TSchema>>
  /** Whether the endpoint supports `Range`. */
  partial?: boolean
  /** The headers of this endpoint; the handler reads them itself. */
  headers?: TSchema
  /** The fields of the multipart form, for endpoints with a form instead of JSON. */
  form?: TSchema
  /** Rules for body and query that handlers check, because their errors say more than a shape's. */
  rules?: { body?: Rules; querystring?: Rules }
  /** Errors of this endpoint, beside those of every endpoint and of the objects in its path. */
  errors?: readonly ErrorCode[]
}

export interface Declared {
  methods: readonly string[]
  url: string
  access: Access
  /** The documentation; null: the endpoint is not part of the API. */
  doc: RouteDoc | null
  /**
   * The parts of a request: `params`, `querystring` and `body`, each a typebox shape. An ID in a path may be any text:
   * an invalid one is not found.
   */
  accepts: FastifySchema
  /** Whether the handler gets a JSON body as the received bytes. */
  raw?: true
  /** Whether the handler itself reads a JSON body while it arrives. */
  streams?: true
  /**
   * Whether the JSON may have lines of a batch, or in `body` that of one line, or is as a whole the body of one line.
   * Lines are kept as bytes, with an empty array or object in their place.
   */
  takesLines?: true | 'body' | 'whole'
}

declare module 'fastify' {
  interface FastifyContextConfig {
    declared?: Declared
  }
  interface FastifyRequest {
    /** The lines in the body. They take much memory: the handler calls `freeLines` once it has stored them. */
    lines: InlineLines | null
    /** The bytes of the `body` of a request that is a line. */
    bytesOfBody: Buffer | null
    freeLines: () => void
    /** The answer in the record of the call, where the real one has contents of files. */
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
  /** The shapes of the parameters in the path, for the reference; by default texts. */
  params?: TProperties
  query?: Q
  body?: B
  takesLines?: Declared['takesLines']
  /** Whether the call creates an object each time, also for a repeated key: calls with a key are rejected. */
  takesNoKey?: true
  /**
   * Whether the handler gets the JSON body as a stream, by its scope's parser; `body` is then only for the reference.
   */
  streams?: true
}

type Answer<A extends TSchema> = Promise<Static<A> | FastifyReply>

/** The largest body in bytes of calls without a key. */
const PUBLIC_BODY_BYTES_MAX = 64 * 1024

/** Adds an endpoint that needs a key, whose caller the handler gets. Undeclared parameters and fields are rejected. */
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
    /** The documentation; absent: the endpoint is not part of the API. */
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

/** The errors of missing objects in a path: `/v1/batches/:batch_id` has `batch_not_found`. */
export function notFoundIn(url: string): ErrorCode[] {
  const names = namesIn(url).map((name) => (name === '*' ? 'model' : name.replace(/_id$/, '')))
  return names.map((name) => `${name}_not_found`).filter(isErrorCode)
}

/** The parameters of a path; `*` is the rest of it. */
function namesIn(url: string): string[] {
  return [...url.matchAll(/:(\w+)|\*/g)].map(([whole, name]) => name ?? whole)
}

/** Returns the value; throws the error with `code` where it is undefined. */
export function found<T>(value: T | undefined, code: ErrorCode, details?: ErrorDetails): T {
  if (value === undefined) throw new ApiError(code, undefined, details)
  return value
}

/** The declared endpoints, for 405 answers, the OpenAPI document and tests. */
export class RouteTable {
  readonly #routes: { declared: Declared; methods: readonly string[]; url: string }[] = []

  /** Watches declarations; to be called before the first endpoint is declared. */
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

  /** The methods of `path`, for the Allow header; empty for an unknown path. Wildcards come last. */
  methodsOf(path: string): string[] {
    const all = this.#routes.filter((route) => matches(route.url, withoutSlash(path)))
    const named = all.filter((route) => !route.url.includes('*'))
    const exact = named.filter((route) => route.url === withoutSlash(path))
    const there = exact.length > 0 ? exact : named.length > 0 ? named : all
    return [...new Set(there.flatMap((route) => route.methods))].sort()
  }
}

/** The path without a slash at its end, as the router finds it. */
function withoutSlash(path: string): string {
  return path.length > 1 && path.endsWith('/') ? path.slice(0, -1) : path
}

/** Whether a path matches: `*` stands for its rest, `:name` for one segment. */
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
  /** Reads whether the database and the blob store answer, for operators. */
  storeHealth: () => Promise<NonNullable<ServiceStatus['service']>['stores']>
  settings: () => Record<string, unknown>
  version: string
  /** Whether the console is prepared soon after the start, rather than at the first page. */
  prepareConsole?: boolean
  plans: ReadonlyMap<string, Plan>
  models: ReadonlyMap<string, Model>
  file_bytes_max: number
  line_bytes_max: number
  /** The memory for content that is being received, where a folder's does not suffice. */
  incomingMemory?: IncomingMemory | undefined
  /** Validates large uploads while they arrive. Absent: they are validated once they are stored. */
  streamingValidation?: StreamingValidation
  /** The time in ms for which a call waits for a file that is being validated. */
  wait_for_file_ms: number
  /** The rules by which single requests are gathered into batches. */
  gather: GatherRules
  webhooks: {
    /** Whether the receiver of a webhook may be in a private network and use plain HTTP. */
    allow_private_networks: boolean
    /** The master key that encrypts signing secrets of webhooks. */
    master: MasterKey
  }
  /** The secrets of upstreams that report ended batches by webhook. */
  batchApiSecrets: () => readonly { upstream: string; secret: string }[]
  /** The parts of buckets that projects may use, by the current configuration. */
  buckets?: () => readonly AllowedPrefix[]
  /** Called after background work was queued, so that workers in this process claim it at once. */
  wake: (news?: 'chunks') => void
  /** Whether the service can do its work, for /readyz. `isPolled`: a load balancer may have asked. */
  ready: (isPolled: boolean) => Promise<boolean>
  /** The time since which no worker runs (Unix ms); null for less than a minute. */
  noWorkerSince?: () => number | null
  metrics?: Registry
  /** Whether the metrics are served on another port. */
  metrics_elsewhere?: boolean
}

/** The dependencies of endpoints; each takes those that it needs. */
export interface RouteDependencies extends ServiceDependencies {
  /** Reads the person that a trusted proxy has signed in; undefined without such a proxy. */
  proxyIdentity: ProxyIdentity | undefined
  /** The issuer of tokens; null where none are accepted. */
  issuer: string | null
  /** Counts a call against the rate limits; the server itself does so for a call with a key. */
  countCall: (caller: Caller, reply: FastifyReply) => Promise<void>
  /** The signal that aborts when the server begins to close: calls that wait, and streams, end. */
  closing: AbortSignal
  idempotency: Idempotency
  incoming: Incoming
  reads: HeavyReads
  downloads: ProjectSlots
  streams: ProjectSlots
}
