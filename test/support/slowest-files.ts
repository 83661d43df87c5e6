// A reporter for `node --test`: prints the slowest test files after the run.
import { relative } from 'node:path'
import type { TestEvent } from 'node:test/reporters'

const FILES_SHOWN = 10

// biome-ignore lint/style/noDefaultExport: node:test loads a reporter by its default export.
export default async function* slowestFiles(events: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  const msOf = new Map<string, number>()
  for await (const { type, data } of events) {
    if ((type !== 'test:pass' && type !== 'test:fail') || data.nesting > 0 || data.file === undefined)
      continue
    msOf.set(data.file, (msOf.get(data.file) ?? 0) + data.details.duration_ms)
  }
  const slowest = [...msOf].sort(([, a], [, b]) => b - a).slice(0, FILES_SHOWN)
  yield '\nslowest test files:\n'
  for (const [file, ms] of slowest)
    yield `${(ms / 1000).toFixed(1).padStart(7)} s  ${relative(process.cwd(), file)}\n`
}
