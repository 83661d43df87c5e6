// Kills of a front and a cell; test/kill/federation.ts runs more of them.
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { runFederation } from './federation.ts'

test('a front and a cell that are killed bill each line once, and no batch is created twice', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-federation-'))
  const { violations } = await runFederation({ cycles: 4, seed: 7, lines: 60, folder, report() {} })
  assert.deepEqual(violations, [])
  await rm(folder, { recursive: true })
})
