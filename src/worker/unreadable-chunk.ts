// Chunks whose input is damaged or missing. Reading is retried until the batch's deadline, because the input may be
// restored from a backup. After that the lines end as errors, so that the batch ends; their custom_ids are unknown.
import { isDamaged } from '../blobs/blobs.ts'
import { DEFAULT_ENDPOINT } from '../domain/endpoint.ts'
import { wireError } from '../domain/errors.ts'
import { NO_SPEND } from '../domain/spend.ts'
import { type ChunkLine, InputChanged } from '../jsonl/chunk-lines.ts'
import type { Journalled } from '../results/journal.ts'
import type { ChunkRow } from '../store/schema.ts'

/** The input cannot be read until somebody restores it. */
export class InputUnreadable extends Error {
  constructor(cause: unknown) {
    super(
      `the input cannot be read: ${cause instanceof Error ? cause.message : cause}; "offpeak doctor" says what to restore`,
      { cause },
    )
    this.name = 'InputUnreadable'
  }
}

/** Whether the input itself is damaged, as opposed to a failure of the store. */
export function isDamage(error: unknown): boolean {
  return isDamaged(error) || error instanceof InputChanged
}

/** As many lines as the chunk has: its finished lines, and lines that cannot run in place of the others. */
export function unreadableLines(
  { first_line, line_count }: Pick<ChunkRow, 'first_line' | 'line_count'>,
  finished: readonly Pick<Journalled, 'line'>[],
): ChunkLine[] {
  const numbers = new Set(finished.map(({ line }) => line))
  for (let line = first_line; numbers.size < line_count; line++) numbers.add(line)
  const fault = wireError('internal_error', 'The input of this line was damaged and can no longer be read.')
  return [...numbers]
    .sort((a, b) => a - b)
    .map((line) => ({
      line,
      custom_id_json: 'null',
      model: null,
      known_model: null,
      entity: null,
      conversation: null,
      tags: null,
      body: { start: 0, end: 0 },
      model_spans: [],
      prompt: { start: 0, end: 0 },
      endpoint: DEFAULT_ENDPOINT,
      input_tokens: 0,
      output_tokens_max: 0,
      prompt_bytes: null,
      isRepeatable: false,
      inputs: 1,
      choices: 1,
      projected: NO_SPEND,
      fault,
    }))
}

/** The lines of a chunk whose results the database rejects, without the text that it rejects. */
export function rejectedLines(lines: readonly ChunkLine[]): ChunkLine[] {
  const fault = wireError('internal_error', 'The result of this line could not be stored. It is not charged.')
  return lines.map((line) => ({
    ...line,
    model: null,
    known_model: null,
    entity: null,
    projected: NO_SPEND,
    fault,
  }))
}
