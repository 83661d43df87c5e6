// Validation that keeps pace with the upload: a big file is read in a thread as it arrives, and is judged by the
// time it is stored. It is a short cut and no more. Where it is not taken (small files, many at once, a thread
// that fell, a file that is not in order), the file is validated from its blob as ever.
//
// An upload waits for its reading: a few blocks are under way, and the sender feels it when they are. So memory
// is the same for files of any size. The thread is started by the first big file, and ends when none has come
// for a while.
import { Worker } from 'node:worker_threads'
import type { Clock } from '../domain/clock.ts'
import type { FromThread, ToThread } from './streaming-validation-thread.ts'
import type { ValidFile } from './streaming-validator.ts'
import type { ValidationLimits } from './validation-first-pass.ts'

/** Smaller files are read again in less time than a thread takes to start. */
const FILE_BYTES_MIN = 8 * 1024 * 1024
/** Two cores read no more files at a time any faster. */
const READINGS_MAX = 4
const BLOCK_BYTES = 256 * 1024
/** Blocks of one upload, full and empty. */
const BLOCKS_MAX = 4
const IDLE_MS = 30_000
/** The thread's own heap, in MiB: it makes next to nothing. Past the second it falls. */
const HEAP = { maxYoungGenerationSizeMb: 4, maxOldGenerationSizeMb: 64 }

export interface StreamingValidationOptions {
  limits: ValidationLimits
  clock: Clock
  /** Told why the thread fell. */
  onCrash: (error: Error) => void
}

/** One upload that is read along. */
export interface StreamingUpload {
  /** Takes a copy of the next piece. A promise: wait for it before the next one. */
  take(piece: Uint8Array): Promise<void> | null
  /** All of the file was given. Null: it has to be validated from its blob. */
  verdict(): Promise<ValidFile | null>
  /** Nothing more will come. After the verdict, this does nothing. */
  leave(): void
}

export class StreamingValidation {
  readonly #options: StreamingValidationOptions
  readonly #uploads = new Map<number, Upload>()
  #thread: Worker | null = null
  #next_id = 1
  #cancel_end = (): void => {}

  constructor(options: StreamingValidationOptions) {
    this.#options = options
  }

  /** Null where the file is better read afterwards; `bytes` is its size, or a little more. */
  begin(bytes: number): StreamingUpload | null {
    if (!(bytes >= FILE_BYTES_MIN) || this.#uploads.size >= READINGS_MAX) return null
    this.#cancel_end()
    const thread = this.#thread ?? this.#start()
    const id = this.#next_id++
    const upload = new Upload(
      (message, transfer) => thread.postMessage({ id, ...message } satisfies ToThread, transfer),
      () => {
        this.#uploads.delete(id)
        if (this.#uploads.size === 0) this.#endWhenIdle()
      },
    )
    this.#uploads.set(id, upload)
    thread.postMessage({ id, begin: this.#options.limits } satisfies ToThread)
    return upload
  }

  /** Ends the thread; uploads under way go on without it. */
  async close(): Promise<void> {
    this.#cancel_end()
    const thread = this.#thread
    this.#forget()
    await thread?.terminate()
  }

  #start(): Worker {
    const file = import.meta.url.endsWith('.ts')
      ? './streaming-validation-thread.ts'
      : './streaming-validation-thread.js'
    const thread = new Worker(new URL(file, import.meta.url), {
      name: 'streaming-validation',
      resourceLimits: HEAP,
    })
    // It keeps no process alive: what it does is for uploads, and those do.
    thread.unref()
    thread.on('message', (message: FromThread) => this.#uploads.get(message.id)?.hear(message))
    thread.on('error', (error: Error) => {
      if (this.#thread !== thread) return
      this.#forget()
      this.#options.onCrash(error)
    })
    this.#thread = thread
    return thread
  }

  #endWhenIdle(): void {
    this.#cancel_end()
    if (this.#thread === null) return
    this.#cancel_end = this.#options.clock.after(IDLE_MS, () => void this.close())
  }

  #forget(): void {
    this.#thread = null
    for (const upload of [...this.#uploads.values()]) upload.abandon()
  }
}

type Order = { block: ArrayBuffer; bytes: number } | { end: true } | { drop: true }

class Upload implements StreamingUpload {
  readonly #send: (order: Order, transfer?: ArrayBuffer[]) => void
  readonly #ended: () => void
  readonly #verdict = Promise.withResolvers<ValidFile | null>()
  #isOver = false
  #blocks = 0
  readonly #free: ArrayBuffer[] = []
  #block: Uint8Array<ArrayBuffer> | null = null
  #filled = 0
  #waiting: (() => void) | null = null

  constructor(send: (order: Order, transfer?: ArrayBuffer[]) => void, ended: () => void) {
    this.#send = send
    this.#ended = ended
  }

  take(piece: Uint8Array): Promise<void> | null {
    let rest = piece
    while (!this.#isOver && rest.length > 0) {
      const block = this.#block ?? this.#empty()
      if (block === null) return this.#room().then(() => this.take(rest) ?? undefined)
      const part = rest.subarray(0, block.length - this.#filled)
      block.set(part, this.#filled)
      this.#filled += part.length
      rest = rest.subarray(part.length)
      if (this.#filled === block.length) this.#pass()
    }
    return null
  }

  async verdict(): Promise<ValidFile | null> {
    if (!this.#isOver) {
      if (this.#filled > 0) this.#pass()
      this.#send({ end: true })
    }
    return await this.#verdict.promise
  }

  leave(): void {
    if (this.#isOver) return
    this.#send({ drop: true })
    this.#end(null)
  }

  /** The thread is gone. */
  abandon(): void {
    this.#end(null)
  }

  hear(message: FromThread): void {
    if ('verdict' in message) this.#end(message.verdict)
    else {
      this.#free.push(message.free)
      this.#waiting?.()
    }
  }

  #empty(): Uint8Array<ArrayBuffer> | null {
    const buffer = this.#free.pop() ?? (this.#blocks < BLOCKS_MAX ? this.#newBlock() : null)
    this.#block = buffer && new Uint8Array(buffer)
    return this.#block
  }

  #newBlock(): ArrayBuffer {
    this.#blocks++
    return new ArrayBuffer(BLOCK_BYTES)
  }

  #pass(): void {
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
