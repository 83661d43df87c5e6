// Streaming validation: a thread validates a large file while it arrives, so the file is processed as soon as it is
// stored. It is an optimisation: small files, files above the concurrency limit, invalid files, and all files after a
// crash of the thread are validated from their blobs.
//
// Each upload has a few blocks in flight and waits when all are in use, and while custom_ids of earlier lines are
// stored, so memory does not depend on the file size. The first large file starts the thread; it ends after an idle
// time.
import { Worker } from 'node:worker_threads'
import type { Clock } from '../domain/clock.ts'
import type { DeclaredEndpoint } from '../domain/endpoint.ts'
import { SharedSlots } from '../domain/project-queue.ts'
import type { Entries } from '../jsonl/custom-ids.ts'
import type { StoredIds } from './stored-ids.ts'
import type { FromThread, Order, ToThread } from './streaming-validation-thread.ts'
import type { ValidationLimits, ValidFile } from './validation.ts'

/** The size from which a file is validated while it arrives: a smaller one takes less time than the thread's start. */
const FILE_BYTES_MIN = 8 * 1024 * 1024
/** The limit of concurrent uploads, since more are not faster on two cores; one project may use half. */
const UPLOADS_MAX = 4
const BLOCK_BYTES = 256 * 1024
/** The number of blocks of one upload, full and empty. */
const BLOCKS_MAX = 4
const IDLE_MS = 30_000
/** The heap limits of the validation thread in MiB; the thread crashes above the second one. */
const HEAP = { maxYoungGenerationSizeMb: 4, maxOldGenerationSizeMb: 64 }

interface StreamingValidationOptions {
  limits: ValidationLimits
  /** The configured endpoints: the thread has a table of endpoints of its own. */
  endpoints?: readonly DeclaredEndpoint[]
  clock: Clock
  /** Called after a crash of the thread. */
  onCrash: (error: Error) => void
}

export class StreamingValidation {
  readonly #options: StreamingValidationOptions
  readonly #uploads = new Map<number, StreamingUpload>()
  readonly #slots = new SharedSlots(UPLOADS_MAX)
  #thread: Worker | null = null
  #nextId = 1
  #cancelEnd = (): void => {}

  constructor(options: StreamingValidationOptions) {
    this.#options = options
  }

  /**
   * Starts the validation of an upload of about `bytes` bytes, whose earlier custom_ids go to `ids`; null if the file
   * has to be validated from its blob.
   */
  begin(project_id: string, bytes: number, ids: Pick<StoredIds, 'add'>): StreamingUpload | null {
    const giveBack = bytes >= FILE_BYTES_MIN ? this.#slots.take(project_id) : null
    if (!giveBack) return null
    this.#cancelEnd()
    const thread = this.#thread ?? this.#start()
    const id = this.#nextId++
    const upload = new StreamingUpload(
      (message, transfer) => thread.postMessage({ id, ...message } satisfies ToThread, transfer),
      () => {
        this.#uploads.delete(id)
        giveBack()
        if (this.#uploads.size === 0) this.#endWhenIdle()
      },
      ids,
    )
    this.#uploads.set(id, upload)
    thread.postMessage({ id, begin: this.#options.limits } satisfies ToThread)
    return upload
  }

  /** Ends the thread; uploads in progress continue without it. */
  async close(): Promise<void> {
    this.#cancelEnd()
    const thread = this.#thread
    this.#abandonAll()
    await thread?.terminate()
  }

  #start(): Worker {
    const file = import.meta.url.endsWith('.ts')
      ? './streaming-validation-thread.ts'
      : './streaming-validation-thread.js'
    const thread = new Worker(new URL(file, import.meta.url), {
      name: 'streaming-validation',
      workerData: this.#options.endpoints ?? [],
      resourceLimits: HEAP,
    })
    // An idle thread must not keep the process running.
    thread.unref()
    thread.on('message', (message: FromThread) => this.#uploads.get(message.id)?.receive(message))
    thread.on('error', (error: Error) => {
      if (this.#thread !== thread) return
      this.#abandonAll()
      this.#options.onCrash(error)
    })
    this.#thread = thread
    return thread
  }

  #endWhenIdle(): void {
    this.#cancelEnd()
    if (this.#thread === null) return
    this.#cancelEnd = this.#options.clock.after(IDLE_MS, () => void this.close())
  }

  #abandonAll(): void {
    this.#thread = null
    for (const upload of [...this.#uploads.values()]) upload.abandon()
  }
}

/** An upload that is validated while it arrives. */
export class StreamingUpload {
  readonly #send: (order: Order, transfer?: ArrayBuffer[]) => void
  readonly #ended: () => void
  readonly #ids: Pick<StoredIds, 'add'>
  /** Resolves when the last custom_ids are stored. */
  #storing: Promise<void> | null = null
  #isUnstorable = false
  readonly #verdict = Promise.withResolvers<ValidFile | null>()
  #isOver = false
  #blocks = 0
  readonly #free: ArrayBuffer[] = []
  #block: Uint8Array<ArrayBuffer> | null = null
  #filled = 0
  #waiting: (() => void) | null = null

  constructor(
    send: (order: Order, transfer?: ArrayBuffer[]) => void,
    ended: () => void,
    ids: Pick<StoredIds, 'add'>,
  ) {
    this.#send = send
    this.#ended = ended
    this.#ids = ids
  }

  /** Copies the next piece. A returned promise must be awaited before the next piece. */
  take(piece: Uint8Array): Promise<void> | null {
    if (this.#storing) return this.#storing.then(() => this.take(piece) ?? undefined)
    let rest = piece
    while (!this.#isOver && rest.length > 0) {
      const block = this.#block ?? this.#empty()
      if (block === null) return this.#room().then(() => this.take(rest) ?? undefined)
      const part = rest.subarray(0, block.length - this.#filled)
      block.set(part, this.#filled)
      this.#filled += part.length
      rest = rest.subarray(part.length)
      if (this.#filled === block.length) this.#sendBlock()
    }
    return null
  }

  /** The result after the last piece; null if the file has to be validated from its blob. */
  async verdict(): Promise<ValidFile | null> {
    if (!this.#isOver) {
      if (this.#filled > 0) this.#sendBlock()
      this.#send({ end: true })
    }
    const verdict = await this.#verdict.promise
    await this.#storing
    return this.#isUnstorable ? null : verdict
  }

  /** Ends the validation without a verdict; does nothing after the verdict. */
  leave(): void {
    if (this.#isOver) return
    this.#send({ drop: true })
    this.#end(null)
  }

  /** Ends the upload's validation after the thread has ended. */
  abandon(): void {
    this.#end(null)
  }

  receive(message: FromThread): void {
    if ('verdict' in message) this.#end(message.verdict)
    else if ('ids' in message) this.#store(message.ids)
    else {
      this.#free.push(message.free)
      this.#waiting?.()
    }
  }

  #store(ids: readonly Entries[]): void {
    const before = this.#storing ?? Promise.resolve()
    const storing = before
      .then(() => this.#ids.add(ids))
      .catch(() => {
        this.#isUnstorable = true
        this.leave()
      })
      .finally(() => {
        if (this.#storing === storing) this.#storing = null
      })
    this.#storing = storing
  }

  #empty(): Uint8Array<ArrayBuffer> | null {
    const free = this.#free.pop()
    if (free === undefined && this.#blocks === BLOCKS_MAX) return null
    if (free === undefined) this.#blocks++
    this.#block = new Uint8Array(free ?? new ArrayBuffer(BLOCK_BYTES))
    return this.#block
  }

  #sendBlock(): void {
    const block = this.#block
    if (block === null) return
    this.#send({ block: block.buffer, bytes: this.#filled }, [block.buffer])
    this.#block = null
    this.#filled = 0
  }

  #room(): Promise<void> {
    return new Promise((resolve) => {
      this.#waiting = () => {
        this.#waiting = null
        resolve()
      }
    })
  }

  #end(verdict: ValidFile | null): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#verdict.resolve(verdict)
    this.#waiting?.()
    this.#ended()
  }
}
