// A few cycles of what `npm run crash` does by the hundred: real processes, killed while they work.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { test } from 'node:test'
import { crashRun } from './crash-run.ts'

test('processes that are killed repeatedly violate no invariant', {
  timeout: 180_000,
  skip: !existsSync('/proc/self/stat'),
}, async (context) => {
  const tell = (line: string): void => context.diagnostic(line)
  const report = await crashRun({ cycles: 4, seed: 1, store: 'sqlite', rest_every: 4, patience: 1, tell })
  assert.deepEqual(report.violations, [])
  assert.ok(report.lines > 0 && report.calls >= report.sent_again.count)
})
