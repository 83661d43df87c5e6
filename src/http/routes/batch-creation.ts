// The creation of a batch, with or after that of its file: in one transaction with its checks, and once for a call that is
// repeated.
import type { FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { ApiError, isErrorCode } from '../../domain/errors.ts'
import { ProjectQueue } from '../../domain/project-queue.ts'
import { checkQuotas } from '../../intake/check-quota.ts'
import { type BatchOrder, createBatch } from '../../intake/create-batch.ts'
import { insertMadeFile } from '../../intake/fetch-input.ts'
import { readProjection } from '../../intake/file-index.ts'
import type { HoldBytes } from '../../intake/incoming.ts'
import { MESSAGE_BODY_BYTES_MAX } from '../../intake/message-requests.ts'
import { commitOrDiscard, retainAs, type Upload } from '../../intake/upload.ts'
import type { BatchProjection } from '../../ledger/check-limits.ts'
import { negotiateLanguage } from '../../ledger/limit-error.ts'
import { removeFile } from '../../lifecycle/remove-file.ts'
import { fileProblems, lockFileRow, type MadeOf, readFile, readIndexBytes } from '../../store/files.ts'
import { insertRow } from '../../store/rows.ts'
import type { BatchRow, FileRow } from '../../store/schema.ts'
import type { Writer } from '../../store/store.ts'
import type { FileProblem } from '../../wire/file.ts'
import { maybeText } from '../../wire/shape.ts'
import { callerOf, planOf, viewOf } from '../access/caller.ts'
import { IdempotencyHeaders, type IdempotentCall, type IdempotentResponse } from '../request/idempotency.ts'
import { WaitingCalls, whileConnected } from '../response/long-calls.ts'
import type { RouteDependencies } from '../route.ts'
import { showBatch } from './batches.ts'
import { type OwnWebhook, showWebhook, withSecret } from './webhooks.ts'

export const ENTITY_CHARACTERS_MAX = 512
/** The size of a file's index in bytes above which calls of one project create batches one after the other. */
const INDEX_BYTES_AT_ONCE_MAX = 64 * 1024
/** The longest wait in ms: common proxies end silent calls after 50 or 60 s, and the caller gets no ID. */
export const SILENT_MS_MAX = 45_000

export const CreateHeaders = Type.Object({
  ...IdempotencyHeaders.properties,
  'X-Service-Entity': Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: ENTITY_CHARACTERS_MAX,
      description:
        'The entity to attribute usage to, where neither a line nor the batch names one in its metadata.',
    }),
  ),
  'Accept-Language': maybeText('The language of limit errors, also in results.'),
})

interface NewBatch {
  call: IdempotentCall
  /** Shows the batch in the answer; absent: in the form of this API. */
  show?: (batch: BatchRow) => object
  orderOf: (input_file_id: string) => BatchOrder
  webhook: OwnWebhook | null
  /** Creates the input file and returns its ID; called once, and not for a repeated call. */
  input?: () => Promise<string>
  /** Creates the file in the transaction of the batch, which then waits for it; in place of `input`. */
  insertInput?: (tx: Writer, now: number) => Promise<string>
}

/** A batch whose lines are not in a file yet. */
export interface BatchOfNewFile extends Omit<NewBatch, 'input' | 'call'> {
  /** The call; a function where the lines must be stored before a repeated call can be recognized. */
  call: IdempotentCall | (() => IdempotentCall)
  /** Whether the problem of a line is shown as one of a request in the call. */
  namesRequests?: true
  /** The size of the file in bytes, as far as it is known. */
  bytes: number
  storeFile: (
    upload: Omit<Upload, 'form_bytes'>,
    check: (tx: Writer, bytes: number) => Promise<void>,
    hold: HoldBytes,
  ) => Promise<FileRow>
}

export class BatchCreation {
  readonly #deps: RouteDependencies
  readonly #projectQueue = new ProjectQueue({ atOnce: Number.POSITIVE_INFINITY, perProject: 1 })
  readonly #waitingForFiles: WaitingCalls

  constructor(deps: RouteDependencies) {
    this.#deps = deps
    this.#waitingForFiles = new WaitingCalls(deps.clock, deps.closing)
  }

  /** Resolves when the file has been validated, or when the wait for it is over. */
  async validated(request: FastifyRequest, file_id: string): Promise<void> {
    const { project_id } = callerOf(request)
    const { store, clock, wait_for_file_ms } = this.#deps
    const isOver = async (): Promise<boolean> =>
      (await readFile(store.read, project_id, file_id, clock.now()))?.status !== 'pending'
    await whileConnected(request, (signal) =>
      this.#waitingForFiles.wait(
        { project_id, ms: Math.min(wait_for_file_ms, SILENT_MS_MAX), signal },
        isOver,
      ),
    )
  }

  /** Calls `act`, for a file with a large index after the other calls of its project. */
  async oneAtATime<T>(project_id: string, file_id: string, act: () => Promise<T>): Promise<T> {
    const { store, clock } = this.#deps
    const indexBytes = await readIndexBytes(store.read, project_id, file_id, clock.now())
    return indexBytes > INDEX_BYTES_AT_ONCE_MAX ? await this.#projectQueue.run(project_id, act) : await act()
  }

  /** Creates a batch, after its file where `input` makes one. The call gets the first answer again if it is repeated. */
  async create(request: FastifyRequest, made: NewBatch): Promise<IdempotentResponse> {
    const { project_id } = callerOf(request)
    const { call, orderOf, webhook, input, insertInput } = made
    const { idempotency, region, wake } = this.#deps
    let id = ''
    let projection: BatchProjection | null = null
    const answer = await idempotency.once(
      call,
      async (tx, now) => {
        if (insertInput) id = await insertInput(tx, now)
        const batch = await createBatch(tx, orderOf(id), projection, now)
        const shown = made.show?.(batch) ?? showBatch(batch, viewOf(request, region))
        if (webhook === null) return JSON.stringify(shown)
        const row = { ...webhook.row, batch_id: batch.id }
        await insertRow(tx, 'webhooks', row)
        return JSON.stringify({ ...shown, webhook: showWebhook(row) })
      },
      async (write) => {
        if (!input) return await write()
        id = await input()
        await this.validated(request, id)
        return await this.oneAtATime(project_id, id, async () => {
          projection = await readProjection(this.#deps, orderOf(id))
          return await write()
        })
      },
    )
    if (answer.replayed) return answer
    wake()
    return withSecret(answer, webhook)
  }

  /**
   * Creates a batch whose file a worker makes from `source`; `file` is the stored form. The batch waits for lines that
   * are not made in time.
   */
  async createOfMadeFile(
    request: FastifyRequest,
    made: Omit<NewBatch, 'input'>,
    source: () => Promise<{ file: FileRow; filename: string; made: MadeOf }>,
  ): Promise<IdempotentResponse> {
    const caller = callerOf(request)
    const { project_id } = caller
    const { store, clock, plans, wake } = this.#deps
    let id: string | null = null
    const input = async (): Promise<string> => {
      const { file, filename, made } = await source()
      const { retention_ms } = retainAs(file, { retention_ms: planOf(plans, caller).file_retention_ms })
      const pending = { project_id, filename, retention_ms }
      id = await store.write((tx) => insertMadeFile(tx, pending, made, clock.now()))
      wake()
      await this.validated(request, id)
      const after = await readFile(store.read, project_id, id, clock.now())
      const [problem] =
        after?.status === 'error' && after.content_blob === null ? fileProblems(after.errors ?? '[]') : []
      if (problem && isErrorCode(problem.code)) {
        const { code, message, line: _, ...details } = problem
        throw new ApiError(problem.code, message, details)
      }
      return id
    }
    const discard = async (): Promise<void> => {
      if (id === null) return
      const made_id = id
      await store.write(async (tx) => {
        const file = await lockFileRow(tx, made_id)
        if (file) await removeFile(tx, file, clock.now())
      })
    }
    const answer = await commitOrDiscard(() => this.create(request, { ...made, input }), discard)
    if (answer.replayed) await discard()
    return answer
  }

  /** Stores the lines as a file and creates its batch. The file is deleted if its batch is not created. */
  async createOfNewFile(request: FastifyRequest, made: BatchOfNewFile): Promise<IdempotentResponse> {
    const caller = callerOf(request)
    const { project_id } = caller
    const { store, clock, plans, idempotency, incoming, wake, file_bytes_max } = this.#deps
    const { quotas, file_retention_ms: retention_ms } = planOf(plans, caller)
    const holder = { project_id, quotas }
    let file: FileRow | undefined
    const discard = async (): Promise<void> => {
      const stored = file
      if (stored) await store.write((tx) => removeFile(tx, stored, clock.now()))
    }
    // The lines of a repeated call are stored until they are known to equal those of the first.
    const isRepeated =
      typeof made.call === 'function' &&
      (await idempotency.earlierAnswer({ project_id, headers: request.headers })) !== null
    const countedBytes = isRepeated ? MESSAGE_BODY_BYTES_MAX : 0
    const input = async (): Promise<string> => {
      const upload = { project_id, now: clock.now(), retention_ms, file_bytes_max }
      const announced = { bytes: made.bytes, zstd: false, countedBytes }
      const check = async (tx: Writer, bytes: number): Promise<void> => {
        const stored_bytes = bytes - countedBytes
        if (stored_bytes > 0) await checkQuotas(tx, holder, { stored_bytes })
      }
      const { id } = await incoming.receive(holder, announced, async (take, hold) => {
        file = await made.storeFile({ ...upload, take }, check, hold)
        return file
      })
      wake()
      return id
    }
    const { call } = made
    const createBoth = async (): Promise<IdempotentResponse> => {
      if (typeof call !== 'function') return await this.create(request, { ...made, call, input })
      const id = await input()
      return await this.create(request, { ...made, call: call(), input: async () => id })
    }
    const named = async (error: unknown): Promise<never> => {
      if (!made.namesRequests || !(error instanceof ApiError) || error.code !== 'file_not_processed')
        throw error
      const row = file && (await readFile(store.read, project_id, file.id, clock.now()))
      const [problem] = fileProblems(row?.errors ?? '[]')
      throw problem ? requestProblem(problem) : error
    }
    const answer = await commitOrDiscard(() => createBoth().catch(named), discard)
    if (answer.replayed) await discard()
    return answer
  }
}

/** The error for a line that was a request of the call. The numbers of requests begin with 0. */
function requestProblem({ line, message, param }: FileProblem): ApiError {
  const request = line === 0 ? 'requests' : `requests[${line - 1}]`
  const field = param?.replace(/^body\b/, 'params')
  const said = message.replace(/\bon line (\d+)\b/g, (_, other) => `in \`requests[${other - 1}]\``)
  return new ApiError('file_not_processed', `\`${request}\`: ${said}`, {
    param: field === undefined ? request : `${request}.${field}`,
  })
}

/** The owner of a batch. `retention`: that of the key. */
export function ownerOf(request: FastifyRequest, header_entity: string | null) {
  const { project_id, key_id, retention } = callerOf(request)
  const language = negotiateLanguage(request.headers['accept-language'])
  return { project_id, key_id, retention, header_entity, language, traceparent: request.traceContext }
}
