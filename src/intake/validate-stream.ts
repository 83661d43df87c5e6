// The one pass that decides what an uploaded file means: every line is well formed and every custom_id is its
// own, or the file is refused with the lines named.
import type { ErrorCode } from '../domain/errors.ts'
import type { FileIndex } from '../domain/file-index.ts'

export interface ValidationLimits {
  lines_max: number
  line_bytes_max: number
}

export interface LineError {
  /** From 1, blank lines counted. */
  line: number
  code: ErrorCode
  message: string
  param?: string
}

export type Validation =
  | { ok: true; bytes: number; line_count: number; index: FileIndex }
  | {
      ok: false
      /** Requests in the file; absent where reading stopped early. */
      line_count?: number
      /** The first ERRORS_LISTED_MAX bad lines, in order; `line` is 0 where the file as a whole is bad. */
      errors: LineError[]
      /** Bad lines found; where reading stopped early, there may be more. */
      error_count: number
      /** For `status_details`: the first bad line, what is wrong, how to mend it, how many more there are. */
      details: string
    }

export const ERRORS_LISTED_MAX = 100

export interface ValidateOptions {
  signal?: AbortSignal
  /** Called with the bytes read so far, after each block. */
  onProgress?: (bytes: number) => void
}

/** Reads the file once, and a second time only if two custom_ids may be equal. Throws what `source` or `signal` throws. */
export function validateStream(
  _source: () => AsyncIterable<Buffer>,
  _limits: ValidationLimits,
  _options: ValidateOptions = {},
): Promise<Validation> {
  throw new Error('not written yet')
}
