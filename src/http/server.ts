// Builds the HTTP server. Every call passes the hooks below in order: it gets an ID, the speed of its body is watched,
// its key is authenticated, rate-limited and authorized, its shape is checked, the handler answers, and the call is
// recorded before the response is sent.
import type { Socket } from 'node:net'
import { Readable } from 'node:stream'
import multipart from '@fastify/multipart'
import fastify, {
  type FastifyBaseLogger,
  type FastifyReply,
  type FastifyRequest,
  LogController,
} from 'fastify'
import { AnonymousRecords, HttpRecords } from '../audit/call-records.ts'
import type { CompatMode } from '../domain/api-key.ts'
import type { AuditLog } from '../domain/audit-log.ts'
import type { Clock } from '../domain/clock.ts'
import { defaultWindow } from '../domain/days.ts'
import { type EndpointPath, endpointPathOf } from '../domain/endpoint.ts'
import { ApiError } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import { isRecord } from '../domain/json-record.ts'
import { SharedSlots } from '../domain/project-queue.ts'
import { parseTraceparent, type Span, type Tracing } from '../domain/tracing.ts'
import { INLINE_BYTES_MAX } from '../intake/inline-lines.ts'
import { httpMetrics } from '../metrics/metrics-text.ts'
import { DRY_RUN } from '../store/calls.ts'
import type { AnonymousRequestRow } from '../store/schema.ts'
import {
  authenticate,
  authenticateSession,
  authorize,
  consoleTokenOf,
  KeyUses,
  namedKey,
  requireConsoleHeader,
} from './access/auth.ts'
import { type Caller, compatOfHeader, planOf, urlOfCall } from './access/caller.ts'
import { JwtIdentity, type JwtRules, tokenOf } from './access/jwt-identity.ts'
import { ProxyIdentity, type SignInProxy } from './access/proxy-identity.ts'
import { type Counted, RateLimit, tighter } from './access/rate-limit.ts'
import { closeIdleConnectionsAtEnd } from './connection/graceful-shutdown.ts'
import { ReceivedRequest } from './connection/received-request.ts'
import { drain, errorOfBrokenHttp, sendErrorOnSocket, watchSender } from './connection/sockets.ts'
import {
  checkBodyHeaders,
  checkNoBody,
  checkShape,
  JSON_BYTES_MAX,
  readJson,
} from './request/check-request.ts'
import { whenClosed } from './response/long-calls.ts'
import { MethodNotAllowed, responseHeaders, sendError } from './response/send-error.ts'
import { type Access, type App, RouteTable, type ServiceDependencies } from './route.ts'
import { addRoutes } from './routes.ts'

export interface ServerDependencies extends ServiceDependencies {
  /** The limit of calls per minute and key; null: no limit. */
  requests_per_minute: number | null
  /** The limit of calls per minute of a project's keys together. */
  project_requests_per_minute?: number | null
  /** The proxy that signs persons in; null or absent: none. */
  signInProxy?: SignInProxy | null
  /** The rules of tokens; null or absent: no tokens are accepted. */
  jwt?: JwtRules | null
  log?: FastifyBaseLogger
  timeouts?: Partial<Timeouts>
  /** The tracing of calls; absent: they have no spans. */
  tracing?: Tracing | undefined
  /** The export of audit records to a collector; absent: calls are only recorded. */
  auditLog?: AuditLog | undefined
}

interface Timeouts {
  /** The longest time in ms from the first byte of a request to the end of its headers. */
  headersMs: number
  /** The window in ms within which a request body must bring `bodyWindowBytes`. */
  bodyWindowMs: number
  bodyWindowBytes: number
  /** The time in ms without traffic after which a connection is closed. */
  idle_ms: number
  /** The time in ms for which a connection is kept between two requests. */
  keepAliveMs: number
}

const TIMEOUTS: Timeouts = {
  headersMs: 20_000,
  bodyWindowMs: 30_000,
  bodyWindowBytes: 16 * 1024,
  idle_ms: 300_000,
  keepAliveMs: 75_000,
}

const UNAVAILABLE = 503
/** The memory in bytes for JSON requests in progress, over all projects; calls without a key are one project. */
const JSON_MEMORY_BYTES = 32 * 1024 * 1024
/** The memory in bytes for larger JSON, with the lines of a batch: for the largest one of two projects. */
const LINES_MEMORY_BYTES = 2 * INLINE_BYTES_MAX
const NO_PROJECT = ''
const TOO_MUCH = 'Too many requests with large bodies are under way.'
const CROWDED_RETRY_S = 1
/** The longest path parameter, Node's 16 KiB for all headers: an ID of any length is looked up and not found. */
const PARAM_LENGTH_MAX = 16 * 1024
const RECORDED_PATH_LENGTH_MAX = 2048
const ANONYMOUS_PATH_LENGTH_MAX = 256

declare module 'fastify' {
  interface FastifyInstance {
    routeTable: RouteTable
  }
  interface FastifyRequest {
    /** The caller; null on public endpoints, and before the key has been read. */
    caller: Caller | null
    /** The compatibility mode of the answer; null: the API's own form. */
    compat: CompatMode | null
    /** The entity of the call, for the audit record. */
    entity: string | null
    stalled: boolean
    span: Span | null
    /** The trace of work that the call causes: its own span, else the trace context of the caller. */
    readonly traceContext: string | null
  }
}

export function buildServer(deps: ServerDependencies): App {
  const { store, clock, region } = deps
  const timeouts = { ...TIMEOUTS, ...deps.timeouts }
  const routes = new RouteTable()
  const records = new HttpRecords(store, deps.auditLog)
  const recordedCalls = new WeakSet<FastifyRequest>()
  const anonymous = new AnonymousRecords(store, clock, deps.auditLog)
  const limitOf = (requests_per_minute: number | null, counted: Counted): RateLimit | null =>
    requests_per_minute === null ? null : new RateLimit(store, clock, requests_per_minute, counted)
  const keyLimit = limitOf(deps.requests_per_minute, 'key')
  const projectLimit = limitOf(deps.project_requests_per_minute ?? null, 'project')
  const observe = deps.metrics ? httpMetrics(deps.metrics) : null
  const keyUses = new KeyUses(store, clock)
  const { signInProxy } = deps
  const proxyIdentity = signInProxy ? new ProxyIdentity(signInProxy, store, clock) : undefined
  const nextRequestId = (): string => newId('request', clock.now())

  const app: App = fastify({
    ...(deps.log ? { loggerInstance: deps.log } : {}),
    schemaController: { compilersFactory: { buildValidator: noDefault, buildSerializer: noDefault } },
    logController: new CallLog({ disableRequestLogging: true, requestIdLogLabel: 'request_id' }),
    genReqId: nextRequestId,
    trustProxy: false,
    bodyLimit: JSON_BYTES_MAX,
    routerOptions: { maxParamLength: PARAM_LENGTH_MAX, ignoreTrailingSlash: true },
    connectionTimeout: timeouts.idle_ms,
    keepAliveTimeout: timeouts.keepAliveMs,
    // An upload may take hours; watchSender ends uploads that are too slow.
    requestTimeout: 0,
    http: {
      headersTimeout: timeouts.headersMs,
      connectionsCheckingInterval: Math.min(5_000, timeouts.headersMs),
      requireHostHeader: false,
      IncomingMessage: ReceivedRequest,
    },
    return503OnClosing: false,
    rewriteUrl: (request) => routableUrl(urlOfCall(request)),
    frameworkErrors: (error, request, reply) => sendError(error, request, reply),
    clientErrorHandler: (error, socket) => {
      const apiError = errorOfBrokenHttp(error)
      if (apiError) void refuseBrokenHttp(socket, apiError)
      else socket.destroy()
    },
  })

  const jwtIdentity = deps.jwt
    ? new JwtIdentity(deps.jwt, store, clock, (err) =>
        app.log.warn({ err }, 'the keys of auth.jwt cannot be read'),
      )
    : undefined

  closeIdleConnectionsAtEnd(app)
  // Node knows the address of an ended connection only if it was read before.
  app.server.on('connection', (socket) => void socket.remoteAddress)
  // By default Node answers an unknown expectation with a bare 417.
  app.server.on('checkExpectation', (request, response) => app.server.emit('request', request, response))

  app.decorateRequest('caller', null)
  app.decorateRequest('compat', null)
  app.decorateRequest('entity', null)
  app.decorateRequest('stalled', false)
  app.decorateRequest('lines', null)
  app.decorateRequest('bytesOfBody', null)
  app.decorateRequest('recorded', null)
  app.decorateRequest('freeLines', () => {})
  app.setValidatorCompiler(checkShape)
  // Tests check responses against their shapes; nothing is removed from a response when it is sent.
  app.setSerializerCompiler(() => (answer) => JSON.stringify(answer))
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', readJson)
  app.register(multipart)

  traceCalls(app, deps.tracing, clock)
  app.addHook('onRequest', async (request, reply) => {
    reply.headers(responseHeaders(request))
    if (hasBody(request)) {
      const pace = { window_ms: timeouts.bodyWindowMs, bytes_min: timeouts.bodyWindowBytes }
      watchSender(request.raw, clock, pace, () => {
        request.stalled = true
        sendErrorOnSocket(request.raw.socket, new ApiError('request_timeout'), request.id)
      })
    }
    const access = request.routeOptions.config.declared?.access ?? null
    if (access !== 'public') await admit(request, reply, access)
    if (hasBrokenEncoding(request.originalUrl))
      throw new ApiError('invalid_request', 'The URL holds a broken percent-encoding.')
  })

  const bodies = new SharedSlots(JSON_MEMORY_BYTES)
  const largeBodies = new SharedSlots(LINES_MEMORY_BYTES)
  app.addHook('preParsing', async (request, reply) => {
    const { config, bodyLimit } = request.routeOptions
    const { declared } = config
    if (!declared || !hasBody(request)) return
    const isForm = declared.doc?.form !== undefined
    checkBodyHeaders(request.headers, isForm)
    if (isForm || declared.streams) return
    // A body of unknown length may be as long as the limit.
    const length = request.headers['content-length']
    const bytes = Math.min(Number(length ?? JSON_BYTES_MAX), bodyLimit)
    const memory = bytes > JSON_BYTES_MAX ? largeBodies : bodies
    const giveBack = memory.take(request.caller?.project_id ?? NO_PROJECT, bytes)
    if (!giveBack) throw new ApiError('service_unavailable', TOO_MUCH, {}, CROWDED_RETRY_S)
    whenClosed(reply.raw, giveBack)
    request.freeLines = () => {
      request.lines = null
      giveBack()
    }
  })

  app.addHook('preValidation', async (request) => {
    const { declared } = request.routeOptions.config
    if (!declared || declared.access === 'public' || declared.doc?.form || declared.accepts.body) return
    checkNoBody(request.headers, request.body)
  })

  const unknownPlans = new Set<string>()

  /** Authenticates and counts a call; without an endpoint (`access` null), the key is read only for the record. */
  async function admit(request: FastifyRequest, reply: FastifyReply, access: Access | null): Promise<void> {
    const compat = compatOfHeader(request.headers)
    request.compat = compat ?? null
    try {
      request.caller = await callerFrom(request)
      if (compat === undefined) request.compat = request.caller.compat
      const { plan, project_id } = request.caller
      if (!deps.plans.has(plan) && !unknownPlans.has(plan)) {
        unknownPlans.add(plan)
        app.log.error(
          { plan, project_id },
          'the configuration lacks the plan of a project; some of its calls get 503',
        )
      }
    } catch (error) {
      if (access === null && error instanceof ApiError) return
      throw error
    }
    await countCall(request.caller, reply)
    if (access !== null) authorize(request.caller, access)
  }

  /** Counts a call of a caller. Throws rate_limit_exceeded. */
  async function countCall({ key_id, project_id }: Caller, reply: FastifyReply): Promise<void> {
    keyUses.note(key_id)
    const ofKey = await keyLimit?.count(key_id)
    // A call that exceeds its key's limit is not counted for its project.
    const ofProject = ofKey?.apiError ? undefined : await projectLimit?.count(project_id)
    const status = tighter(ofKey, ofProject)
    if (!status) return
    reply.headers(status.headers)
    if (status.apiError) throw status.apiError
  }

  /** The caller: from a key first, then the proxy's person, a token, or the cookie of a session. */
  async function callerFrom({ headers, method, raw }: FastifyRequest): Promise<Caller> {
    const { authorization } = headers
    const session = authorization === undefined ? consoleTokenOf(headers.cookie) : null
    // Proxies may put their own values into the Authorization header.
    const person = namedKey(authorization) === null ? proxyIdentity?.personOf(raw) : undefined
    let caller: Caller
    if (person && (session === null || proxyIdentity?.isMember(person)))
      caller = await proxyIdentity!.authenticate(person)
    else if (session === null) {
      const token = jwtIdentity && tokenOf(authorization)
      if (!jwtIdentity || !token) return await authenticate(store.read, region, authorization)
      const { caller, entity } = await jwtIdentity.authenticate(token)
      // Set like the header of a caller, which Node decodes as Latin-1.
      if (entity !== null) headers['x-service-entity'] ??= Buffer.from(entity).toString('latin1')
      return caller
    } else caller = await authenticateSession(store.read, session, clock.now())
    if (method !== 'GET' && method !== 'HEAD') requireConsoleHeader(headers)
    return caller
  }

  app.addHook('onSend', async (request, reply, payload) => {
    // Fastify would read the stream to its end, which one of live updates does not have.
    if (request.method === 'HEAD' && payload instanceof Readable) payload.destroy()
    const recorded = record(request, reply, payload)
    // While a store is unavailable, the call has changed nothing, and its caller has waited long enough.
    if (reply.statusCode !== UNAVAILABLE) await recorded
    return payload
  })

  /** Records a call, on public endpoints only if it failed. Never rejects. */
  async function record(request: FastifyRequest, reply: FastifyReply, payload: unknown): Promise<void> {
    const { id, method, caller } = request
    const { statusCode: status } = reply
    const path = pathOf(request)
    const ended = { id, method, status, created: clock.now(), duration_ms: Math.round(reply.elapsedTime) }
    if (!caller) {
      const isPublic = request.routeOptions.config.declared?.access === 'public'
      if (status < 400 || (isPublic && status >= 500)) return
      return await addAnonymous({
        ...ended,
        path: path.slice(0, ANONYMOUS_PATH_LENGTH_MAX),
        address: request.ip ?? '',
        key_id: namedKey(request.headers.authorization),
      })
    }
    const changes = method === 'POST' || method === 'DELETE'
    // Content that fails before its first byte is answered with an error after all.
    const isRecorded = recordedCalls.has(request)
    recordedCalls.add(request)
    try {
      await records[isRecorded ? 'replace' : 'add']({
        ...ended,
        project_id: caller.project_id,
        key_id: caller.key_id,
        path: `${path}${isDryRun(request) ? DRY_RUN : ''}`.slice(0, RECORDED_PATH_LENGTH_MAX),
        entity: request.entity,
        response: changes && typeof payload === 'string' ? (request.recorded ?? payload) : null,
        traceparent: callerTrace(request),
      })
    } catch (error) {
      // The work is done, so the caller gets the response although it could not be recorded.
      request.log.error({ err: error }, 'the call could not be recorded')
    }
  }

  async function addAnonymous(row: AnonymousRequestRow): Promise<void> {
    try {
      await anonymous.add(row)
    } catch (error) {
      app.log.error({ err: error, request_id: row.id }, 'a refused call could not be recorded')
    }
  }

  async function refuseBrokenHttp(socket: Socket, apiError: ApiError): Promise<void> {
    const id = nextRequestId()
    const { status } = apiError
    const address = socket.remoteAddress ?? ''
    await addAnonymous({
      ...{ id, status, address, method: '', path: '', key_id: null, duration_ms: 0, created: clock.now() },
    })
    sendErrorOnSocket(socket, apiError, id)
  }

  app.addHook('onResponse', async (request, reply) => {
    drain(request.raw, clock)
    const { declared } = request.routeOptions.config
    const line = {
      method: request.method,
      route: declared?.url ?? 'none',
      status: reply.statusCode,
      duration_ms: Math.round(reply.elapsedTime),
      key_id: request.caller?.key_id ?? null,
    }
    observe?.(line)
    request.log[declared?.access === 'public' ? 'debug' : 'info'](line, 'answered')
  })

  app.setErrorHandler((error, request, reply) => {
    // Fastify would close the connection before the sender has read the error: `drain` reads the rest of the body.
    if (reply.hasHeader('connection')) reply.removeHeader('connection')
    return sendError(error, request, reply)
  })

  app.setNotFoundHandler((request) => {
    const path = pathOf(request)
    const allowed = routes.methodsOf(request.url.split('?', 1)[0] ?? '')
    if (allowed.length === 0) {
      const meant = routes.methodsOf(`/v1${path}`).length > 0 ? ` Did you mean /v1${path}?` : ''
      const endpoint = endpointPathOf(request.url.split('?', 1)[0] ?? '')
      const plan = request.caller ? planOf(deps.plans, request.caller) : [...deps.plans.values()][0]
      const windows = plan?.completion_windows.map(({ text }) => text) ?? []
      const inBatches = endpoint === null ? '' : ` ${batchOnly(endpoint, defaultWindow(windows))}`
      throw new ApiError('unknown_endpoint', `There is no ${request.method} ${path}.${meant}${inBatches}`)
    }
    throw new MethodNotAllowed(allowed)
  })

  routes.watch(app)
  app.decorate('routeTable', routes)
  addRoutes(app, { ...deps, proxyIdentity, issuer: deps.jwt?.issuer ?? null, countCall })
  return app
}

/** Logs answers that break off after their first byte; the hooks above log calls. */
class CallLog extends LogController {
  override streamError(err: Error & { code?: string }, request: FastifyRequest): void {
    const hasCallerLeft = err.code === 'ERR_STREAM_PREMATURE_CLOSE'
    if (!hasCallerLeft) request.log.error({ err, path: pathOf(request) }, 'an answer broke off')
  }
}

/** Replaces Fastify's own compilers, which are not used and would be loaded. */
function noDefault(): never {
  throw new Error('the server has compilers of its own')
}

/** Advice for a caller who wants an answer at once. */
function batchOnly(endpoint: EndpointPath, window: string): string {
  return (
    'Requests are answered in batches only. Call POST /v1/batches with ' +
    `{"endpoint":"${endpoint}","completion_window":"${window}","requests":[{"body":{…}}]}, where each \`body\` is a request; ` +
    'many go in a file, as its lines. ' +
    'The command line does all of it: offpeak run requests.jsonl.'
  )
}

function pathOf({ originalUrl }: FastifyRequest): string {
  return originalUrl.split('?', 1)[0] ?? ''
}

/** Whether a call is a dry run, which changes nothing. */
function isDryRun({ query }: FastifyRequest): boolean {
  return isRecord(query) && query.dry_run === 'true'
}

function hasBody({ headers }: FastifyRequest): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0
}

/**
 * Whether the path of a URL cannot be decoded. It is then routed with its percent signs escaped, so that the call is
 * authenticated, counted and recorded like every other before it is rejected.
 */
function hasBrokenEncoding(url: string): boolean {
  const path = url.split('?', 1)[0] ?? ''
  if (!path.includes('%')) return false
  try {
    decodeURIComponent(path)
    return false
  } catch {
    return true
  }
}

/** The URL to route, with percent signs escaped if it cannot be decoded. */
function routableUrl(url: string): string {
  return hasBrokenEncoding(url) ? url.replaceAll('%', '%25') : url
}

function callerTrace({ headers }: FastifyRequest): string | null {
  return parseTraceparent(headers.traceparent)
}

/** Reads the trace context of each call, and gives calls with a key a span. Its hooks have to be the first. */
function traceCalls(app: App, tracing: Tracing | undefined, clock: Clock): void {
  app.decorateRequest('span', null)
  app.decorateRequest('traceContext', {
    getter(this: FastifyRequest) {
      return this.span?.traceparent ?? callerTrace(this)
    },
  })
  if (!tracing) return
  app.addHook('onRequest', async (request) => {
    const { declared } = request.routeOptions.config
    if (!declared || declared.access === 'public') return
    request.span = tracing.start({
      name: `${request.method} ${declared.url}`,
      kind: 'server',
      parent: callerTrace(request),
      at: clock.now(),
      attributes: {
        'http.request.method': request.method,
        'http.route': declared.url,
        'offpeak.request.id': request.id,
      },
    })
  })
  app.addHook('onResponse', async (request, reply) => {
    const { span, caller } = request
    if (!span) return
    const { statusCode: status } = reply
    span.set({
      'http.response.status_code': status,
      ...(caller && { 'offpeak.project.id': caller.project_id }),
    })
    span.end(clock.now(), status >= 500 ? String(status) : undefined)
  })
}
