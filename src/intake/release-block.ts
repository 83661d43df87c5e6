// The pieces in which a body arrives have memory of their own, which the garbage collector hears of late: at
// hundreds of megabytes a second, tens of them lie around, and each round of collecting looks through all else.

/** Frees the memory of a piece that nobody uses any more, if it shares it with no other. */
export function freeBuffer({ buffer, byteLength }: Uint8Array): void {
  if (buffer instanceof ArrayBuffer && byteLength === buffer.byteLength) buffer.transfer(0)
}
