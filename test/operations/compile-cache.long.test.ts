// Code that somebody else has put into a cache would run as ours: real processes, before folders of every kind.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { chmod, chown, mkdir, mkdtemp, readdir, rm, stat, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { promisify } from 'node:util'
import { cleanEnv, OFFPEAK } from '../support/offpeak-process.ts'

const run = promisify(execFile)
const uid = process.getuid?.() ?? 0
const asRoot = uid === 0 ? false : 'needs root, to make folders of another user'

describe('compiled code', { skip: process.platform === 'win32' && 'there are no such modes' }, () => {
  const made: string[] = []
  after(async () => {
    for (const folder of made) await rm(folder, { recursive: true, force: true })
  })

  /** A home and a temporary folder, which is for all like /tmp. */
  async function machine() {
    // The system's own temporary folder may be anything.
    const folder = await mkdtemp(join(tmpdir(), 'offpeak-cache-'))
    made.push(folder)
    const home = join(folder, 'home')
    const temporary = join(folder, 'tmp')
    await mkdir(home)
    await mkdir(temporary)
    await chmod(temporary, 0o1777)
    const start = async (): Promise<void> => {
      const { NODE_COMPILE_CACHE: _, XDG_CACHE_HOME: __, ...env } = cleanEnv()
      await run(process.execPath, [OFFPEAK, '--help'], { env: { ...env, HOME: home, TMPDIR: temporary } })
    }
    return {
      home,
      temporary,
      start,
      own: join(home, '.cache', 'offpeak'),
      second: join(temporary, `offpeak-${uid}`),
    }
  }

  const holds = async (folder: string): Promise<boolean> => (await readdir(folder).catch(() => [])).length > 0

  test('is kept in a folder of the user alone, and used again', async () => {
    const { own, start, temporary } = await machine()
    await start()
    assert.ok(await holds(own))
    assert.equal((await stat(own)).mode & 0o777, 0o700)
    assert.deepEqual(await readdir(temporary), [])
    await start()
  })

  test('is kept in an own folder below the temporary one where there is no home to write to', async () => {
    const { home, second, start } = await machine()
    await rm(home, { recursive: true })
    await symlink('/nowhere', home)
    await start()
    assert.ok(await holds(second))
    assert.equal((await stat(second)).mode & 0o777, 0o700)
  })

  test('is not kept where others may write, or read', async () => {
    const { own, second, start } = await machine()
    for (const folder of [own, second]) await mkdir(folder, { recursive: true })
    await chmod(own, 0o777)
    await chmod(second, 0o750)
    await start()
    for (const folder of [own, second]) assert.ok(!(await holds(folder)), folder)
  })

  test('is not kept behind a link, nor where others could exchange the folder', async () => {
    const { home, temporary, own, second, start } = await machine()
    const elsewhere = join(home, 'elsewhere')
    await mkdir(elsewhere, { mode: 0o700 })
    await mkdir(join(home, '.cache'))
    await symlink(elsewhere, own)
    await chmod(temporary, 0o777)
    await start()
    for (const folder of [elsewhere, second]) assert.ok(!(await holds(folder)), folder)
  })

  test('is not kept in a folder that another user has put there', { skip: asRoot }, async () => {
    const { own, second, start } = await machine()
    for (const folder of [own, second]) {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      await chown(folder, 12_345, 12_345)
    }
    await start()
    for (const folder of [own, second]) assert.ok(!(await holds(folder)), folder)
  })
})
