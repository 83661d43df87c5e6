// The index of an input file, stored as JSON: enough to plan and project a batch without reading the file.
import type { ChunkSpan } from '../domain/batch.ts'
import type { TokenSums } from './projection.ts'

export interface FileIndex {
  chunks: ChunkSpan[]
  /** By (model, entity), at most GROUPS_MAX of them. */
  groups: TokenSums[]
  /**
   * By model alone: the lines that came after the file had named GROUPS_MAX pairs and belong to none of
   * them. Their entities are known only line by line. Empty for nearly every file.
   */
  unattributed: TokenSums[]
}

/** Bounds the index of a file that names very many entities. */
export const GROUPS_MAX = 20_000
