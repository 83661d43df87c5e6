// Reads an error file and counts its lines by error code.
import { Value } from 'typebox/value'
import { adviceFor } from '../client/api-error.ts'
import { byteLines } from '../client/byte-lines.ts'
import { ResultLine } from '../client/shapes.ts'
import { counted, sentence } from '../terminal/format.ts'

export interface FailedLine {
  custom_id: string
  code: string
  message: string
}

/** Skips lines that are not result lines with an error. */
export async function* failedLines(blocks: AsyncIterable<Buffer>): AsyncGenerator<FailedLine> {
  for await (const line of byteLines(blocks)) {
    if (line.length === 0) continue
    const parsed: unknown = JSON.parse(line.toString())
    if (!Value.Check(ResultLine, parsed) || parsed.error === null) continue
    yield { custom_id: parsed.custom_id, code: parsed.error.code, message: parsed.error.message }
  }
}

export interface CodeCount {
  code: string
  count: number
  /** The message of the first line with this code. */
  message: string
}

/** Most frequent first. */
export async function countByCode(lines: AsyncIterable<FailedLine>): Promise<CodeCount[]> {
  const counts = new Map<string, CodeCount>()
  for await (const { code, message } of lines) {
    const seen = counts.get(code)
    if (seen === undefined) counts.set(code, { code, count: 1, message })
    else seen.count++
  }
  return [...counts.values()].sort((a, b) => b.count - a.count)
}

/** A line for each code: how often it occurred, what it means, what to do. */
export function explained(counts: readonly CodeCount[]): string[] {
  return counts.map(({ code, count, message }) => {
    const advice = adviceFor(code)
    return `  ${counted(count, 'line')} ${code}: ${sentence(message)}${advice === null ? '' : ` ${advice}`}`
  })
}
