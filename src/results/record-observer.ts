// What the recorder reports to metrics.
import type { Fresh } from './chunk-results.ts'

/** What the recorder does with blobs (`journal`, `seal`) and in the database (`commit`, `park`). */
export type RecordWork = 'journal' | 'seal' | 'commit' | 'park'

export interface RecordObserver {
  /** These lines have ended, and that is durable. */
  committed(lines: Fresh): void
  recorded(work: RecordWork, durationMs: number): void
}
