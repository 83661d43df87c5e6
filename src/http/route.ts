// The only way to add an endpoint. The access that a key needs is part of the declaration: without it an endpoint does
// not compile, and the server does not start.
import type {
  ContextConfigDefault,
  FastifyBaseLogger,
  FastifyInstance,
  FastifySchema,
  FastifyTypeProvider,
  RawReplyDefaultExpression,
  RawRequestDefaultExpression,
  RawServerDefault,
  RouteGenericInterface,
  RouteOptions,
} from 'fastify'
import type { Registry } from 'prom-client'
import { type Static, type TSchema, Type } from 'typebox'
import type { LineRecordText } from '../audit/read-line.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import type { KeyBox } from '../blobs/wrap-key.ts'
import type { Scope } from '../domain/api-key.ts'
import type { Clock } from '../domain/clock.ts'
import type { ErrorCode } from '../domain/errors.ts'
import type { Model } from '../domain/model.ts'
import type { Plan } from '../domain/plan.ts'
import type { IncomingMemory } from '../intake/incoming.ts'
import { INLINE_BYTES_MAX, type InlineLines } from '../intake/inline-lines.ts'
import type { StreamingValidation } from '../intake/streaming-validation.ts'
import type { Store } from '../store/store.ts'
import type { ServiceStatus } from '../wire/status.ts'

/** Types a Fastify request by the TypeBox shapes that it was checked against. */
export interface TypeboxProvider extends FastifyTypeProvider {
  validator: this['schema'] extends TSchema ? Static<this['schema']> : unknown
  serializer: this['schema'] extends TSchema ? Static<this['schema']> : unknown
}

export type App = FastifyInstance<
  RawServerDefault,
  RawRequestDefaultExpression,
  RawReplyDefaultExpression,
  FastifyBaseLogger,
  TypeboxProvider
>

/** A key with one of these scopes, any valid key, or no key at all. */
export type Access = readonly [Scope, ...Scope[]] | 'any key' | 'public'

type Method = 'GET' | 'HEAD' | 'POST' | 'DELETE'

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
  /** What else holds for the body and the query. Handlers check it: their errors say more than a shape's. */
  rules?: { body?: Rules; querystring?: Rules }
  /** Errors of this endpoint, beside those that every endpoint may answer. */
  errors?: readonly ErrorCode[]
}

export interface Declared {
  method: Method | readonly Method[]
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
  /** The JSON may bring the lines of a batch, which are kept as bytes; the body has an empty array in their place. */
  takesLines?: true
}

declare module 'fastify' {
  interface FastifyContextConfig {
    declared?: Declared
  }
  interface FastifyRequest {
    /** That came in the body. They take much memory: whoever has stored them calls `freeLines`. */
    lines: InlineLines | null
    freeLines: () => void
    /** What the record of the call has as its answer, where that holds contents of files. */
    recorded: string | null
  }
}

type Options<S extends FastifySchema> = RouteOptions<
  RawServerDefault,
  RawRequestDefaultExpression,
  RawReplyDefaultExpression,
  RouteGenericInterface,
  ContextConfigDefault,
  S,
  TypeboxProvider
>

interface RouteSpec<S extends FastifySchema> extends Omit<Declared, 'doc' | 'accepts'> {
  method: Method | Method[]
  doc?: RouteDoc
  accepts?: S
  handler: Options<S>['handler']
}

const NO_PARAMETERS = Type.Object({})
/** Of calls without a key. */
const PUBLIC_BODY_BYTES_MAX = 64 * 1024

export function route<S extends FastifySchema>(app: App, spec: RouteSpec<S>): void {
  const { method, url, access, doc = null, accepts, raw, takesLines, handler } = spec
  const declared: Declared = { method, url, access, doc, accepts: accepts ?? {} }
  app.route<RouteGenericInterface, ContextConfigDefault, S>({
    method,
    url,
    handler,
    ...(access === 'public' ? { bodyLimit: PUBLIC_BODY_BYTES_MAX } : {}),
    ...(takesLines ? { bodyLimit: INLINE_BYTES_MAX } : {}),
    // Public endpoints ignore unknown parameters: load balancers and scrapers may add some.
    schema: access === 'public' ? accepts : Object.assign({ querystring: NO_PARAMETERS }, accepts),
    config: { declared: { ...declared, ...(raw && { raw }), ...(takesLines && { takesLines }) } },
  })
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
    const there = named.length > 0 ? named : all
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

/** The dependencies of all endpoints. Each endpoint picks the ones that it needs. */
export interface RouteDependencies {
  store: Store
  sealed: SealedBlobs
  clock: Clock
  region: string
  /** Whether the database and the blob store answer; asked by operators. */
  storeHealth: () => Promise<NonNullable<ServiceStatus['service']>['stores']>
  /** The configuration in force, without its secrets. */
  settings: () => Record<string, unknown>
  /** Of the service. */
  version: string
  /** Prepares the console soon after the start, and not only when its first page is asked for. */
  prepareConsole?: boolean
  plans: ReadonlyMap<string, Plan>
  models: ReadonlyMap<string, Model>
  file_bytes_max: number
  /** What content may take while it is received, where a folder's needs do not fit. */
  incomingMemory?: IncomingMemory | undefined
  /** Validates large uploads while they arrive. Without it they are validated once they are stored. */
  streamingValidation?: StreamingValidation
  /** How long creating a batch waits for a file that is being validated. */
  wait_for_file_ms: number
  webhooks: {
    /** Whether a receiver may be in a private network and use plain HTTP. */
    allow_private_networks: boolean
    /** Encrypts the signing secrets. */
    keys: KeyBox
  }
  /** Of upstreams that tell by webhook of batches that have ended. */
  batchApiSecrets: () => readonly { upstream: string; secret: string }[]
  /** Called after background work was queued, so that workers in this process claim it at once. */
  wake: () => void
  /** The audit record of one line; undefined if the project has no such batch or line. `names`: null for operators. */
  readLineRecord: (
    project_id: string,
    batch_id: string,
    line: number,
    names: ReadonlyMap<string, Model> | null,
  ) => Promise<LineRecordText | undefined>
  /** Whether the service can do its work, for /readyz. */
  ready: () => Promise<boolean>
  /** Since when no worker has run (Unix ms); null if that is less than a minute. */
  noWorkerSince?: () => number | null
  /** Counts calls; shown at /metrics. */
  metrics?: Registry
  /** The metrics are shown on another port instead. */
  metrics_elsewhere?: boolean
}
