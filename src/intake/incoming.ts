// Admits the content of calls: files, parts of uploads, lines that are run again. A call takes memory of this process
// and a slot of its project before its content is read, and its bytes count against the project's quota before they are
// stored. Each API process counts by itself; the transaction that makes a file or a part of the content counts for all
// (check-quota.ts).
import { ApiError } from '../domain/errors.ts'
import { quotaExceeded } from '../domain/plan.ts'
import { SharedSlots } from '../domain/project-queue.ts'
import { readUse } from '../store/projects.ts'
import type { Store } from '../store/store.ts'
import type { QuotaHolder } from './check-quota.ts'

const MIB = 1024 * 1024
/** Bytes of memory that each call counts for at least. */
const CALL_BYTES_MIN = MIB / 4
/** The memory of a decompressor: its window (RFC 9659). */
const ZSTD_BYTES = 8 * MIB
/** Bytes of a form's fields and boundaries, which are subtracted from its announced size. */
const FORM_BYTES = 64 * 1024
const RETRY_S = 1

export interface IncomingMemory {
  /** Bytes of memory for all calls together. */
  bytes: number
  /** Bytes of memory that writing a large blob takes. */
  callBytes: number
}

/** The memory for blobs in a folder, each of which is written from a few frames and a gathered megabyte. */
const MEMORY: IncomingMemory = { bytes: 128 * MIB, callBytes: 2 * MIB }

/** The facts about the content of a call that are known before it is read. */
export interface Announced {
  /** Bytes of the content; 0: unknown. */
  bytes: number
  zstd: boolean
  /** The upload of which the content is a part, and the announced bytes of it that have not arrived yet. */
  partOf?: { id: string; left: number }
  /** Bytes of the content that the project's stored bytes include already. */
  countedBytes?: number
}

/** Counts the next piece, of `bytes` bytes, and must be called before the piece is stored. Throws quota_exceeded. */
export type TakeBytes = (bytes: number) => void

/**
 * Reserves `bytes` of memory, until the call ends, beyond the memory for streaming its content. Throws
 * service_unavailable.
 */
export type HoldBytes = (bytes: number) => void

interface Receipt {
  upload: string | null
  bytes: number
  /** Bytes of the content that the project's stored bytes include already. */
  free: number
}

interface Project {
  /** Stored bytes of the project: the database's last value, and the bytes that this process has stored since. */
  stored: number
  receipts: Set<Receipt>
}

export class Incoming {
  readonly #store: Pick<Store, 'read'>
  readonly #callBytes: number
  readonly #memory: SharedSlots
  readonly #projects = new Map<string, Project>()

  constructor(store: Pick<Store, 'read'>, { bytes, callBytes }: IncomingMemory = MEMORY) {
    this.#store = store
    this.#callBytes = callBytes
    this.#memory = new SharedSlots(bytes)
  }

  /** The number of the project's running calls that receive a whole file. */
  files(project_id: string): number {
    const receipts = [...(this.#projects.get(project_id)?.receipts ?? [])]
    return receipts.filter(({ upload }) => upload === null).length
  }

  /** Runs `act`, which stores the content. Throws quota_exceeded, and service_unavailable if memory is short. */
  async receive<T>(
    holder: QuotaHolder,
    announced: Announced,
    act: (take: TakeBytes, hold: HoldBytes) => Promise<T>,
  ): Promise<T> {
    const { project_id, quotas } = holder
    const project = this.#projects.get(project_id) ?? { stored: 0, receipts: new Set() }
    const calls = project.receipts.size
    if (quotas.uploads !== null && calls >= quotas.uploads)
      throw quotaExceeded('uploads', quotas.uploads, calls, 1)
    const memory: (() => void)[] = []
    let counted = 0
    const hold: HoldBytes = (bytes) => {
      if (bytes <= counted) return
      const free = this.#memory.take(project_id, bytes - counted)
      if (!free)
        throw new ApiError('service_unavailable', 'The service receives too much at once.', {}, RETRY_S)
      memory.push(free)
      counted = bytes
    }
    const contentBytes = this.#memoryOf(announced)
    hold(contentBytes)
    const { partOf } = announced
    const least = Math.max(0, announced.bytes - FORM_BYTES)
    const receipt: Receipt = {
      upload: partOf?.id ?? null,
      bytes: 0,
      free: freeOf(project, announced),
    }
    project.receipts.add(receipt)
    this.#projects.set(project_id, project)
    try {
      const { stored_bytes: limit } = quotas
      if (limit !== null) {
        const use = await readUse(this.#store.read, project_id, ['stored_bytes'])
        project.stored = use.stored_bytes ?? 0
      }
      const take: TakeBytes = (bytes) => {
        receipt.bytes += bytes
        const own = countOf(receipt)
        if (limit === null || own === 0) return
        const all = project.stored + sumOf(project)
        if (all > limit) throw quotaExceeded('stored_bytes', limit, all - own, own)
      }
      // The content has at least one byte.
      take(Math.max(1, least))
      let ahead = receipt.bytes
      const value = await act(
        (bytes) => {
          const announcedBefore = Math.min(ahead, bytes)
          ahead -= announcedBefore
          if (bytes > announcedBefore) take(bytes - announcedBefore)
        },
        (bytes) => hold(contentBytes + bytes),
      )
      project.stored += countOf(receipt)
      return value
    } finally {
      project.receipts.delete(receipt)
      if (project.receipts.size === 0) this.#projects.delete(project_id)
      for (const free of memory) free()
    }
  }

  #memoryOf({ bytes, zstd }: Announced): number {
    const content = bytes === 0 ? this.#callBytes : Math.min(this.#callBytes, bytes)
    return Math.max(CALL_BYTES_MIN, content) + (zstd ? ZSTD_BYTES : 0)
  }
}

/** Bytes of a call's content that count as stored already; calls with parts of one upload share its announced bytes. */
function freeOf({ receipts }: Project, { bytes, partOf, countedBytes = 0 }: Announced): number {
  if (partOf === undefined) return countedBytes
  const others = [...receipts].filter(({ upload }) => upload === partOf.id)
  const left = others.reduce((sum, { free }) => sum - free, partOf.left)
  return Math.max(0, bytes === 0 ? left : Math.min(left, bytes))
}

function countOf({ bytes, free }: Receipt): number {
  return Math.max(0, bytes - free)
}

function sumOf({ receipts }: Project): number {
  let sum = 0
  for (const receipt of receipts) sum += countOf(receipt)
  return sum
}
