import assert from 'node:assert/strict'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { PartialFile, writeWhole } from './output-file.ts'

test('of two programs that write a file at the same time, the later one does, and the other says so', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-output-'))
  const path = join(folder, 'usage.csv')
  await writeFile(`${path}.part`, 'what a killed program has left, which is longer')
  const first = await PartialFile.create(path)
  await first.append(Buffer.from('the first half, '))
  const second = await PartialFile.create(path)
  await second.append(Buffer.from('whole'))
  await first.append(Buffer.from('the second half'))
  await assert.rejects(first.end(), /another program writes .*usage\.csv/)
  await first.abort()
  await second.end()
  assert.equal(await readFile(path, 'utf8'), 'whole')
  const blocks = function* (): Generator<string> {
    yield 'x'
    throw new Error('the connection broke')
  }
  await assert.rejects(writeWhole(path, blocks()), /the connection broke/)
  assert.equal(await readFile(path, 'utf8'), 'whole')
  assert.deepEqual(await readdir(folder), ['usage.csv'])
  await rm(folder, { recursive: true })
})
