// A chunk whose input can no longer be read: damaged, or gone. Until its window closes it is tried again, for a
// backup may bring the input back; then its lines end, so that the batch does. Which custom_ids they had,
// nobody can say any more.
import { isDamaged } from '../../blobs/blobs.ts'
import { wireError } from '../../domain/errors.ts'
import { NO_SPEND } from '../../domain/spend.ts'
import { type ChunkLine, InputChanged } from '../../jsonl/chunk-lines.ts'
import type { Written } from '../../results/journal.ts'
import type { ChunkRow } from '../../store/schema.ts'

/** What cannot be read now will not be read later, unless somebody restores it. */
export class InputUnreadable extends Error {
  constructor(cause: unknown) {
    super(
      `the input cannot be read: ${cause instanceof Error ? cause.message : cause}; "offpeak doctor" says what to restore`,
      { cause },
    )
    this.name = 'InputUnreadable'
  }
}

/** Whether the input itself is wrong, rather than the way to it. */
export function isDamage(error: unknown): boolean {
  return isDamaged(error) || error instanceof InputChanged
}

/** As many lines as the chunk has: those that are finished already, and for the rest lines that cannot run. */
export function unreadableLines(
  { first_line, line_count }: Pick<ChunkRow, 'first_line' | 'line_count'>,
  finished: readonly Pick<Written, 'line'>[],
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
      messages: { start: 0, end: 0 },
      input_tokens: 0,
      output_tokens_max: 0,
      prompt_bytes: null,
      choices: 1,
      projected: NO_SPEND,
      fault,
    }))
}

/** The lines of a chunk whose results the database refuses: nothing of their text may reach it again. */
export function refusedLines(lines: readonly ChunkLine[]): ChunkLine[] {
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
