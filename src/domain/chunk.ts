// A chunk is a run of consecutive lines of one input file: the unit that the database stores, that a worker leases
// and that is sealed into result blobs. Lines are stored in blobs only.

/** A chunk ends before the line that would exceed either limit; a line above the limit is a chunk of its own. */
export const CHUNK_LINES_MAX = 1000
export const CHUNK_BYTES_MAX = 8 * 1024 * 1024

/** Where a chunk's lines lie in the uploaded file. */
export interface ChunkSpan {
  /** Counts from 0 within the file. */
  index: number
  /** The line number of its first request in the uploaded file, from 1; blank lines have numbers too. */
  first_line: number
  /** How many requests it holds; blank lines are not counted. */
  line_count: number
  /** Byte offsets into the uploaded file: `byte_start` inclusive, `byte_end` exclusive. */
  byte_start: number
  byte_end: number
  /** The model of all its lines; null when they name several, or none. */
  model: string | null
}
