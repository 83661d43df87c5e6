// The package as it is published, with the rest of a release: its list of files, and that it works where it is installed, without a clone.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { buildConsole } from '../../src/http/routes/console/assets.ts'
import { cleanEnv } from '../support/offpeak-process.ts'

const run = promisify(execFile)
const ROOT = fileURLToPath(new URL('../..', import.meta.url))

/** Everything but compiled code, documents and decisions, which a file is enough to add. */
const FILES = [
  ...['CHANGELOG.md', 'Dockerfile', 'LICENSE', 'README.md', 'compose.yaml', 'package.json'],
  'bin/offpeak.js',
  ...['examples/README.md', 'examples/gsm8k-LICENSE', 'examples/gsm8k.jsonl', 'examples/llama-server'],
  ...[
    'classify-and-review.sh',
    'embeddings.sh',
    'gather-inspect.sh',
    'gather-lm-eval.sh',
    'gather-loop.sh',
    'judge.sh',
    'kubernetes.sh',
    'nightly_airflow.py',
    'systemd.sh',
  ].map((name) => `examples/recipes/${name}`),
  ...['examples/offpeak.yaml', 'examples/review-schema.json', 'examples/reviews.csv', 'examples/vllm.yaml'],
]
const FOLDERS = ['deploy', 'dist', 'docs', 'man']

const { version: VERSION }: { version: string } = JSON.parse(
  await readFile(join(ROOT, 'package.json'), 'utf8'),
)

interface Packed {
  files: { path: string }[]
}

describe('the package', () => {
  let folder: string
  let release: string
  let packed: string

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'offpeak-package-'))
    release = join(folder, 'release')
    await run(process.execPath, ['deploy/release.ts', '--dry-run', '--out', release], { cwd: ROOT })
    packed = join(release, `offpeak-${VERSION}.tgz`)
  })
  after(() => rm(folder, { recursive: true, force: true }))

  test('publishes what it is meant to hold, and nothing else', async () => {
    // What "npm pack" has built is published; without a login, and to no registry.
    const args = ['publish', '--dry-run', '--json', '--ignore-scripts']
    const { stdout } = await run('npm', args, { cwd: ROOT, maxBuffer: 64 * 1024 * 1024 })
    const published: Record<string, Packed> = JSON.parse(stdout)
    const paths = (published.offpeak?.files ?? []).map(({ path }) => path)
    const { stdout: inside } = await run('tar', ['-tzf', packed])
    assert.deepEqual(
      paths.toSorted(),
      inside
        .trimEnd()
        .split('\n')
        .map((path) => path.replace(/^package\//, ''))
        .sort(),
    )
    const inFolders = paths.filter((path) => FOLDERS.includes(path.split('/')[0] ?? ''))
    assert.deepEqual(paths.filter((path) => !inFolders.includes(path)).sort(), [...FILES].sort())
    const code = inFolders.filter((path) => path.endsWith('.js'))
    // Names of other files end with a hash of their content.
    const named = code.filter((path) => !/^dist\/([a-z]+\/)?[\w.-]+-[A-Z0-9]{8}\.js$/.test(path))
    const served = named.filter((path) => path.startsWith('dist/console/'))
    assert.deepEqual(named.filter((path) => !served.includes(path)).sort(), [
      ...['dist/compose/worker-process.js', 'dist/intake/streaming-validation-thread.js', 'dist/main.js'],
      ...['dist/tables/row-lines-process.js', 'dist/tables/schema-check-process.js'],
    ])
    assert.deepEqual(served, ['dist/console/app.js'], 'all pages in one script')
    const others = inFolders.filter((path) => !path.endsWith('.js'))
    const unexpected = others.filter(
      (path) =>
        !/^(deploy\/|docs\/.*\.md$|docs\/offpeak\.schema\.json$|dist\/console\/|dist\/LICENSES\.txt$|man\/offpeak\.1$)/.test(
          path,
        ),
    )
    assert.deepEqual(unexpected, [])
    for (const made of ['docs/api-reference.md', 'man/offpeak.1'])
      assert.ok(others.includes(made), `${made} is made for the package`)
    const neverShipped = /^(src|test|bench)\/|\.test\.js$|offpeak-data|\.env|\.npmrc/
    assert.deepEqual(
      paths.filter((path) => neverShipped.test(path)),
      [],
    )
  })

  test('comes with checksums, a bill of materials, provenance and a chart that names its parts by digest', async () => {
    const { stdout: checked } = await run('sha256sum', ['-c', 'SHA256SUMS'], { cwd: release })
    assert.equal(checked.match(/: OK$/gm)?.length, 5)
    const text = (name: string) => readFile(join(release, name), 'utf8')
    const { components } = JSON.parse(await text(`offpeak-${VERSION}.cdx.json`))
    assert.ok(components.some(({ purl }: { purl: string }) => purl.startsWith('pkg:npm/fastify@')))
    const { subject, predicate } = JSON.parse(await text(`offpeak-${VERSION}.intoto.jsonl`))
    const sums = await text('SHA256SUMS')
    for (const { name, digest } of subject) assert.ok(sums.includes(`${digest.sha256}  ${name}\n`), name)
    const { stdout: head } = await run('git', ['rev-parse', 'HEAD'], { cwd: ROOT })
    assert.equal(predicate.buildDefinition.resolvedDependencies[0].digest.gitCommit, head.trim())

    const layout = join(folder, 'chart')
    await mkdir(layout)
    await run('tar', ['-xf', join(release, `offpeak-chart-${VERSION}.oci.tar`), '-C', layout])
    const blob = (digest: string) => readFile(join(layout, 'blobs', digest.replace(':', '/')))
    const { manifests } = JSON.parse(await readFile(join(layout, 'index.json'), 'utf8'))
    const manifest = await blob(manifests[0].digest)
    const { config, layers } = JSON.parse(manifest.toString())
    assert.equal(JSON.parse((await blob(config.digest)).toString()).version, VERSION)
    assert.deepEqual(
      await blob(layers[0].digest),
      await readFile(join(release, `offpeak-chart-${VERSION}.tgz`)),
    )
    for (const digest of [manifests[0].digest, config.digest, layers[0].digest])
      assert.equal(
        `sha256:${createHash('sha256')
          .update(await blob(digest))
          .digest('hex')}`,
        digest,
      )

    const page = await text(`offpeak-${VERSION}.md`)
    assert.match(page, new RegExp(`^# Offpeak ${VERSION}\n`))
    assert.match(page, /^### Added$/m)
    assert.doesNotMatch(page, /^## \[/m, 'the changes of this version alone')
    assert.ok(page.includes(manifests[0].digest))
  })

  test('is released from its tag alone', async () => {
    const refused = run(process.execPath, ['deploy/release.ts', '--out', join(folder, 'none')], { cwd: ROOT })
    await assert.rejects(
      refused,
      /release: (the working tree has changes|HEAD is not the commit of the tag v)/,
    )
  })

  test('comes with the console that a clone makes of its sources', async () => {
    for (const [path, text] of Object.entries((await buildConsole()).files))
      assert.equal(await readFile(join(ROOT, 'dist/console', path), 'utf8'), text, path)
  })

  test('is built of the same sources wherever the build is started, by which a clone knows whether it is stale', async () => {
    const sources = async (cwd: string): Promise<unknown> => {
      await run(process.execPath, [join(ROOT, 'build.ts')], { cwd })
      return JSON.parse(await readFile(join(ROOT, 'dist/sources.json'), 'utf8'))
    }
    const [elsewhere, here] = [await sources(folder), await sources(ROOT)]
    assert.deepEqual(elsewhere, here)
    assert.ok(Array.isArray(here) && here.includes('src/main.ts'))
    // One that is not there makes every build stale.
    for (const path of here) assert.ok(existsSync(join(ROOT, path)), path)
  })

  test('keeps the notices of the packages that became part of it', async () => {
    const text = await readFile(join(ROOT, 'dist/LICENSES.txt'), 'utf8')
    for (const name of ['fastify', 'kysely', 'preact', 'typebox', 'uplot'])
      assert.match(text, new RegExp(`^${name} \\d.*\\(MIT\\)$`, 'm'))
    assert.ok((text.match(/Permission is hereby granted|Redistribution and use/g) ?? []).length > 20)
  })

  test('runs a table where it is installed, without a clone', async () => {
    await writeFile(join(folder, 'package.json'), '{"private":true}')
    const args = ['install', '--prefer-offline', '--no-audit', '--no-fund', packed]
    await run('npm', args, { cwd: folder })
    const offpeak = (...more: string[]) => run('npx', ['offpeak', ...more], { cwd: folder, env: CLEAN })
    assert.equal((await offpeak('--version')).stdout, `${VERSION}\n`)
    assert.match(
      (await offpeak('config', 'show')).stdout,
      /^region: local\nlisten:\n {2}host: 127\.0\.0\.1\n/,
    )
    const reviews = join(folder, 'node_modules/offpeak/examples/reviews.csv')
    const asked = ['--model', 'sim-1', '--prompt', 'Classify: {{text}}']
    await offpeak('run', reviews, ...asked, '-o', 'out.csv')
    const table = (name: string) => readFile(join(folder, name), 'utf8')
    assert.match(await table('out.csv'), /^id,product,stars,text,answer,error\n1,kettle,/)
    // A check that cannot run says so in the column "error", and the exit code does.
    const schema = join(folder, 'node_modules/offpeak/examples/review-schema.json')
    await offpeak('run', reviews, ...asked, '--schema', schema, '-o', 'checked.csv')
    const checked = await table('checked.csv')
    assert.match(checked, /^id,product,stars,text,sentiment,topic,wants_reply,error\n/)
    assert.equal(checked.match(/,(true|false),$/gm)?.length, 20)
  })
})

/** With the Node that runs the tests. */
const CLEAN = cleanEnv({ PATH: `${dirname(process.execPath)}${delimiter}${process.env.PATH}` })

test('on an older Node every command says in one sentence what to install', async () => {
  const older =
    'data:text/javascript,Object.defineProperty(process,"versions",{value:{...process.versions,node:"20.20.2"}})'
  const bin = join(ROOT, 'bin/offpeak.js')
  await assert.rejects(run(process.execPath, ['--import', older, bin, '--version']), ({ stderr, code }) => {
    assert.match(
      stderr,
      /^offpeak needs Node 24\.15 or newer, and this is Node 20\.20\.2: install a newer one .*\n$/,
    )
    return code === 1
  })
})

test('bin/offpeak.js loads nothing that an older Node lacks', async () => {
  const text = await readFile(join(ROOT, 'bin/offpeak.js'), 'utf8')
  assert.deepEqual(text.match(/^import .*$/gm), [
    "import { chmodSync, existsSync, mkdirSync, readFileSync, statSync } from 'node:fs'",
    "import module from 'node:module'",
    "import { fileURLToPath } from 'node:url'",
  ])
})
