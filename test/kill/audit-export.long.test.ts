// Kills processes that export the audit log, until one has come to the end.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { SETTLED_MS } from '../../src/audit/export-records.ts'
import { configFor, TestService } from '../service.ts'
import { cleanEnv, OFFPEAK } from '../support/offpeak-process.ts'

const RECORDS = 6_000

test('an export that is killed again and again has each record once, in order', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  await service.request('GET', '/v1/models')
  const { store } = service.stores
  await store.write(async (tx) => {
    const [call] = await tx.selectFrom('http_requests').selectAll().execute()
    const created = call!.created - SETTLED_MS - 60_000
    for (let at = 0; at < RECORDS; at += 1000) {
      const ids = Array.from({ length: 1000 }, (_, i) => at + i)
      const rows = ids.map((n) => ({
        ...call!,
        id: `req_${String(n).padStart(26, '0')}`,
        created: created + (n >> 4),
      }))
      await tx.insertInto('http_requests').values(rows).execute()
    }
  })
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-audit-'))
  const path = join(folder, 'audit.ndjson')
  const args = [OFFPEAK, 'audit', 'export', '-o', path]
  const env = cleanEnv({ OFFPEAK_BASE_URL: service.url, OFFPEAK_API_KEY: service.key })
  let kills = 0
  for (let size = 0; ; kills++) {
    const child = spawn(process.execPath, args, { env, stdio: 'ignore' })
    const ended = once(child, 'exit')
    let over = false
    void ended.then(() => {
      over = true
    })
    // Until it has written some, and is about to write more.
    const wanted = size + 450_000 + 137 * kills
    while (!over && size < wanted) {
      size = await stat(path).then(
        (found) => found.size,
        () => 0,
      )
      await new Promise((resolve) => setImmediate(resolve))
    }
    child.kill('SIGKILL')
    const [code] = await ended
    if (code === 0) break
  }
  assert.ok(kills >= 3, `${kills} were killed`)
  const records = (await readFile(path, 'utf8')).trimEnd().split('\n')
  // The calls of the test itself come behind them, once they are settled.
  const ids = records.map((record) => String(JSON.parse(record).id)).slice(0, RECORDS)
  const wrong = ids.findIndex((id, n) => id !== `req_${String(n).padStart(26, '0')}`)
  assert.deepEqual([ids.length, wrong, ids[wrong]], [RECORDS, -1, undefined])
  await rm(folder, { recursive: true })
})
