// What is installed is what was looked at: held to the lock file, without a registry.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'

interface Locked {
  version?: string
  integrity?: string
  hasInstallScript?: boolean
  link?: boolean
}

const text = (path: string): string => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8')

const lock: { packages: Record<string, Locked> } = JSON.parse(text('package-lock.json'))
const packages = Object.entries(lock.packages).filter(([path]) => path !== '')

test('every package is named with the hash of its content', () => {
  assert.ok(packages.length > 50)
  const without = packages.filter(
    ([, { integrity }]) => !/^sha512-[A-Za-z0-9+/]{86}==$/.test(integrity ?? ''),
  )
  assert.deepEqual(without, [])
})

test('no package but the pinned Node runs a script when it is installed', () => {
  const { allowScripts }: { allowScripts: Record<string, boolean> } = JSON.parse(text('package.json'))
  const running = packages.filter(
    ([path, { hasInstallScript }]) =>
      hasInstallScript === true && allowScripts[path.replace('node_modules/', '')] !== false,
  )
  assert.deepEqual(
    running.map(([path]) => path),
    ['node_modules/node'],
  )
})

test('every pod is without the variables that Kubernetes sets for Services', () => {
  const pods = ['helm/offpeak/templates/_helpers.tpl', 'kubernetes/api.yaml', 'kubernetes/worker.yaml']
  for (const path of pods) assert.match(text(`deploy/${path}`), /^ +enableServiceLinks: false$/m, path)
})

test('the image sets defaults alone, so that flags, variables and the file of an operator win', () => {
  const set = [...text('Dockerfile').matchAll(/OFFPEAK_\w+(?==)/g)].map(([name]) => name)
  assert.ok(set.length > 0 && set.every((name) => name.startsWith('OFFPEAK_DEFAULT_')), set.join())
})

test('chart, manifests and changelog have the version of the package', () => {
  const { version }: { version: string } = JSON.parse(text('package.json'))
  assert.equal(lock.packages['']?.version, version)
  const chart = text('deploy/helm/offpeak/Chart.yaml')
  assert.deepEqual(
    [...chart.matchAll(/^(?:version|appVersion): (.*)$/gm)].map(([, found]) => found),
    [version, version],
  )
  assert.equal(/newTag: (.*)/.exec(text('deploy/kubernetes/kustomization.yaml'))?.[1], version)
  const [newest] = text('CHANGELOG.md').matchAll(/^## \[(\d.*)\] - (.*)$/gm)
  assert.equal(newest?.[1], version)
  assert.match(newest[2] ?? '', /^\d{4}-\d{2}-\d{2}$/)
})
