// Whether identical requests of one batch are sent once. `repeatable`: those alone whose answer does not depend on
// chance. `all`: whatever the requests are.
export type DedupeMode = 'repeatable' | 'all'

/** `dedupe` of a request that creates a batch. */
export function dedupeMode(wanted: boolean | 'force' | null | undefined): DedupeMode | null {
  if (wanted === 'force') return 'all'
  return wanted === true ? 'repeatable' : null
}

/** As the API shows it. */
export function shownDedupe(mode: DedupeMode): true | 'force' {
  return mode === 'all' ? 'force' : true
}
