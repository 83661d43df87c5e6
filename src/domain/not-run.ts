// Recognizes failed lines that were never sent, for the service and the console.

/** What lines end with that were to be sent and were not. */
const NOT_RUN: ReadonlySet<string> = new Set([
  'batch_expired',
  'batch_cancelled',
  'input_file_deleted',
  'usage_limit_exceeded',
])

/** Whether a failed line was never sent, so that the line is not at fault. */
export function isNotRun(code: string | undefined, attempts: number): boolean {
  return attempts === 0 && code !== undefined && NOT_RUN.has(code)
}
