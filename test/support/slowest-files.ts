// A reporter for `node --test`: prints the slowest test files after the run.

import { relative } from 'node:path'
import type { TestEvent } from 'node:test/reporters'

const FILES_SHOWN = 10

// biome-ignore lint/style/noDefaultExport: node:test loads a reporter by its default export.
export default async function* slowestFiles(events: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  const durations: { file: string; ms: number }[] = []
  for await (const event of events) {
    // One summary per file, and one without a file for the whole run.
    if (event.type === 'test:summary' && event.data.file !== undefined)
      durations.push({ file: event.data.file, ms: event.data.duration_ms })
  }
  durations.sort((a, b) => b.ms - a.ms)
  yield '\nslowest test files:\n'
  for (const { file, ms } of durations.slice(0, FILES_SHOWN))
    yield `${(ms / 1000).toFixed(1).padStart(7)} s  ${relative(process.cwd(), file)}\n`
}
