// Frees the memory of a buffer at once, or keeps it for reuse. V8 counts a buffer of a megabyte as a few bytes: it
// keeps hundreds of them until its next collection of the whole heap, or collects again and again because of them. The
// allocator maps each large buffer anew, at a fault per page.

/** The limit of memory kept for reuse. */
const SPARE_BYTES_MAX = 4 * 1024 * 1024
/** The divisor of buffer sizes, so that memory fits slightly longer buffers. The allocator maps no smaller buffer. */
const STEP_BYTES = 256 * 1024

const spares: ArrayBuffer[] = []
let spareBytes = 0

/**
 * Frees the memory of `view`, which is empty afterwards like all other views of it. No read or write of it may be
 * running, system calls included. Buffers of Node's pool, which share memory, stay as they are.
 */
export function freeBuffer(view: Uint8Array | Uint32Array): void {
  ownMemory(view)?.transfer(0)
}

/** A buffer of `bytes` with any content, in memory kept by `reuseBuffer` if one of that size is available. */
export function largeBuffer(bytes: number): Buffer {
  if (bytes < STEP_BYTES) return Buffer.allocUnsafeSlow(bytes)
  const at = spares.findIndex(({ byteLength }) => byteLength >= bytes && byteLength <= bytes + STEP_BYTES)
  const [spare] = at === -1 ? [] : spares.splice(at, 1)
  spareBytes -= spare?.byteLength ?? 0
  const memory = spare ?? Buffer.allocUnsafeSlow(STEP_BYTES * Math.ceil(bytes / STEP_BYTES)).buffer
  return Buffer.from(memory, 0, bytes)
}

/** Frees a buffer as `freeBuffer` does, but the memory may become that of a later `largeBuffer`. */
export function reuseBuffer(view: Uint8Array): void {
  const memory = ownMemory(view)
  if (memory === null) return
  const isKept = memory.byteLength >= STEP_BYTES && spareBytes + memory.byteLength <= SPARE_BYTES_MAX
  if (isKept) {
    spareBytes += memory.byteLength
    spares.push(memory.transfer())
  } else memory.transfer(0)
}

/** The memory of a view; null if other views share it. */
function ownMemory(view: Uint8Array | Uint32Array): ArrayBuffer | null {
  const { buffer } = view
  // An empty buffer has no memory of its own.
  if (!(buffer instanceof ArrayBuffer) || view.byteLength === 0) return null
  return view.byteLength === buffer.byteLength || buffer.byteLength > 2 * Buffer.poolSize ? buffer : null
}
