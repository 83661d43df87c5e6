// Frees the memory of a buffer at once. To V8 a buffer of a megabyte is an object of a few bytes: it leaves hundreds of
// them to its next collection of the whole heap, or collects the heap again and again because of them.

/**
 * Frees the memory that `view` is a view of; `view`, and all others of it, are empty afterwards. The caller knows that
 * nobody reads or writes it any more, system calls included. Buffers out of Node's pool, which have others' bytes too,
 * stay as they are.
 */
export function freeBuffer(view: Uint8Array): void {
  const { buffer } = view
  // An empty buffer has no memory, and is often one that others use as well.
  if (!(buffer instanceof ArrayBuffer) || view.byteLength === 0) return
  const isOwn = view.byteLength === buffer.byteLength || buffer.byteLength > 2 * Buffer.poolSize
  if (isOwn) buffer.transfer(0)
}
