// What is installed is what was looked at: held to the lock file, without a registry.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'

interface Locked {
  integrity?: string
  hasInstallScript?: boolean
  link?: boolean
}

const lock: { packages: Record<string, Locked> } = JSON.parse(
  readFileSync(new URL('../package-lock.json', import.meta.url), 'utf8'),
)
const packages = Object.entries(lock.packages).filter(([path]) => path !== '')

test('every package is named with the hash of its content', () => {
  assert.ok(packages.length > 50)
  const without = packages.filter(
    ([, { integrity }]) => !/^sha512-[A-Za-z0-9+/]{86}==$/.test(integrity ?? ''),
  )
  assert.deepEqual(without, [])
})

test('no package but the pinned Node runs a script when it is installed', () => {
  const running = packages.filter(([, { hasInstallScript }]) => hasInstallScript === true)
  assert.deepEqual(
    running.map(([path]) => path),
    ['node_modules/node'],
  )
})
