// release.ts [--dry-run] [--out DIR]: makes everything that a release publishes, of the commit that the tag of the version
// names, into one folder: the package of npm, its bill of materials, the chart as a file and as an OCI artifact, the image
// where a tool for it is there, checksums, provenance and the release page. It publishes nothing: the page ends with the
// commands that do. A dry run takes any commit, builds no image, and has npm try what it would publish.
import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'

const ROOT = join(import.meta.dirname, '..')
const { values } = parseArgs({ options: { 'dry-run': { type: 'boolean' }, out: { type: 'string' } } })
const isDryRun = values['dry-run'] === true
const { version, description, license }: { version: string; description: string; license: string } =
  JSON.parse(read('package.json'))
const tag = `v${version}`
const out = resolve(
  values.out ?? (isDryRun ? mkdtempSync(join(tmpdir(), 'offpeak-release-')) : `release-${version}`),
)
const names = {
  package: `offpeak-${version}.tgz`,
  sbom: `offpeak-${version}.cdx.json`,
  chart: `offpeak-chart-${version}.tgz`,
  chartLayout: `offpeak-chart-${version}.oci.tar`,
  image: `offpeak-image-${version}.tar`,
  imageSbom: `offpeak-image-${version}.cdx.json`,
  provenance: `offpeak-${version}.intoto.jsonl`,
  page: `offpeak-${version}.md`,
}

function read(path: string): string {
  return readFileSync(join(ROOT, path), 'utf8')
}

function run(program: string, args: string[], env: NodeJS.ProcessEnv = {}): string {
  const options = { cwd: ROOT, maxBuffer: 2 ** 28, env: { ...process.env, ...env } }
  return execFileSync(program, args, { ...options, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] })
}

function has(program: string, args = ['--version']): boolean {
  return spawnSync(program, args, { stdio: 'ignore', timeout: 10_000 }).status === 0
}

function sha256(content: Buffer | string): string {
  return createHash('sha256').update(content).digest('hex')
}

function fail(message: string): never {
  process.stderr.write(`release: ${message}\n`)
  process.exit(1)
}

const commit = run('git', ['rev-parse', 'HEAD']).trim()
const [, notes] = read('CHANGELOG.md').split(
  new RegExp(`^## \\[${version.replaceAll('.', '\\.')}\\].*$`, 'm'),
)
if (notes === undefined)
  fail(`CHANGELOG.md has no section ${version}; give Unreleased the version and the date`)
if (!isDryRun) {
  if (run('git', ['status', '--porcelain']) !== '') fail('the working tree has changes; commit them first')
  const tagged = spawnSync('git', ['rev-parse', '--verify', '--quiet', `${tag}^{commit}`], {
    cwd: ROOT,
    encoding: 'utf8',
  })
  if (tagged.stdout.trim() !== commit)
    fail(`HEAD is not the commit of the tag ${tag}; check it out, or tag it`)
}
mkdirSync(out, { recursive: true })
const strange = readdirSync(out).filter(
  (name) => name !== 'SHA256SUMS' && !Object.values(names).includes(name),
)
if (strange.length > 0) fail(`${out} has other files (${strange[0]}); name an empty folder with --out`)

const date = run('git', ['log', '-1', '--format=%cI']).trim()
run('npm', ['pack', '--pack-destination', out])
if (isDryRun) run('npm', ['publish', '--dry-run', '--ignore-scripts', join(out, names.package)])
const sbom = [
  '--omit',
  'dev',
  '--package-lock-only',
  '--sbom-format',
  'cyclonedx',
  '--sbom-type',
  'application',
]
writeFileSync(join(out, names.sbom), run('npm', ['sbom', ...sbom]))
const chartDigest = writeChart()
const image = isDryRun ? 'not built in a dry run' : buildImage()
writeProvenance()
const sums = artifacts().map((name) => `${sha256(readFileSync(join(out, name)))}  ${name}\n`)
writeFileSync(join(out, 'SHA256SUMS'), sums.join(''))
writePage()
process.stdout.write(`${out}\n${sums.join('')}image: ${image}\n`)

/** The files that are published, in the order of their names. */
function artifacts(): string[] {
  return readdirSync(out)
    .filter((name) => name !== 'SHA256SUMS' && name !== names.page)
    .sort()
}

/** An archive whose bytes the content alone decides. */
function tar(path: string, folder: string, entries: string[], flags: string[] = []): void {
  const plain = [
    '--sort=name',
    '--owner=0',
    '--group=0',
    '--numeric-owner',
    '--mode=u=rwX,go=rX',
    `--mtime=${date}`,
  ]
  run('tar', [...plain, ...flags, '-cf', path, '-C', folder, ...entries])
}

/** The chart as `helm package` makes it, and as an OCI image layout with the types of Helm; returns the digest of its manifest. */
function writeChart(): string {
  const chart = join(out, names.chart)
  tar(chart, join(ROOT, 'deploy/helm'), ['offpeak'], ['--use-compress-program=gzip -n'])
  const layout = mkdtempSync(join(tmpdir(), 'offpeak-chart-'))
  mkdirSync(join(layout, 'blobs/sha256'), { recursive: true })
  const add = (mediaType: string, content: Buffer | string) => {
    const digest = sha256(content)
    writeFileSync(join(layout, 'blobs/sha256', digest), content)
    return { mediaType, digest: `sha256:${digest}`, size: Buffer.byteLength(content) }
  }
  const yaml = read('deploy/helm/offpeak/Chart.yaml')
  const fields = Object.fromEntries(
    [...yaml.matchAll(/^(\w+): *"?([^"\n]+)"?$/gm)].map(([, name, value]) => [name, value]),
  )
  const annotations = {
    'org.opencontainers.image.version': version,
    'org.opencontainers.image.revision': commit,
  }
  const manifest = add(
    'application/vnd.oci.image.manifest.v1+json',
    JSON.stringify({
      schemaVersion: 2,
      mediaType: 'application/vnd.oci.image.manifest.v1+json',
      config: add('application/vnd.cncf.helm.config.v1+json', JSON.stringify(fields)),
      layers: [add('application/vnd.cncf.helm.chart.content.v1.tar+gzip', readFileSync(chart))],
      annotations: { 'org.opencontainers.image.title': 'offpeak', ...annotations },
    }),
  )
  const named = { ...manifest, annotations: { 'org.opencontainers.image.ref.name': version } }
  writeFileSync(join(layout, 'index.json'), JSON.stringify({ schemaVersion: 2, manifests: [named] }))
  writeFileSync(join(layout, 'oci-layout'), JSON.stringify({ imageLayoutVersion: '1.0.0' }))
  tar(join(out, names.chartLayout), layout, readdirSync(layout))
  rmSync(layout, { recursive: true })
  return manifest.digest
}

/** Returns what was made, or why nothing was. */
function buildImage(): string {
  const path = join(out, names.image)
  if (has('docker', ['buildx', 'inspect'])) {
    const labels = [
      '--label',
      `org.opencontainers.image.version=${version}`,
      '--label',
      `org.opencontainers.image.revision=${commit}`,
    ]
    run('docker', [
      'buildx',
      'build',
      ...labels,
      '--sbom=true',
      '--provenance=mode=max',
      '--output',
      `type=oci,dest=${path}`,
      '.',
    ])
    return `${names.image}, an OCI layout with its bill of materials and provenance`
  }
  if (!has('buildah')) return 'not built: neither docker buildx nor buildah (as root) is here'
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-image-'))
  run('deploy/image/build', [], { OFFPEAK_IMAGE_DIR: folder, OFFPEAK_IMAGE: `localhost/offpeak:${version}` })
  run('mv', [join(folder, 'offpeak.tar'), path])
  run('mv', [join(folder, 'offpeak.cdx.json'), join(out, names.imageSbom)])
  return `${names.image}, for docker load or skopeo`
}

/** What was made of what, as an in-toto statement of SLSA, to be signed by whoever publishes. */
function writeProvenance(): void {
  const digestOf = (name: string) => ({ name, digest: { sha256: sha256(readFileSync(join(out, name))) } })
  const made = artifacts().filter((name) => name !== names.provenance)
  const statement = {
    _type: 'https://in-toto.io/Statement/v1',
    subject: made.map(digestOf),
    predicateType: 'https://slsa.dev/provenance/v1',
    predicate: {
      buildDefinition: {
        buildType: 'urn:offpeak:release:1',
        externalParameters: { ref: isDryRun ? 'HEAD' : `refs/tags/${tag}`, command: 'npm run release' },
        internalParameters: { node: process.version },
        resolvedDependencies: [
          { name: 'source', digest: { gitCommit: commit } },
          { name: 'package-lock.json', digest: { sha256: sha256(read('package-lock.json')) } },
        ],
      },
      runDetails: { builder: { id: 'urn:offpeak:release:by-hand' } },
    },
  }
  writeFileSync(join(out, names.provenance), `${JSON.stringify(statement)}\n`)
}

function writePage(): void {
  const [own = ''] = (notes ?? '').split(/^## /m)
  const rows = artifacts().map((name) => {
    const content = readFileSync(join(out, name))
    return `| \`${name}\` | ${(statSync(join(out, name)).size / 1024).toFixed(0)} KiB | \`${sha256(content)}\` |`
  })
  writeFileSync(
    join(out, names.page),
    `# Offpeak ${version}

${description} ${license}. Commit \`${commit}\`.
${own.trimEnd()}

## Files

| file | size | SHA-256 |
|---|---|---|
${rows.join('\n')}

The chart as an OCI artifact is \`${chartDigest}\`. \`sha256sum -c SHA256SUMS\` checks what was downloaded.

## To publish

\`\`\`sh
git push origin ${tag}
npm publish ${names.package} --provenance --access public
skopeo copy oci-archive:${names.chartLayout} docker://$REGISTRY/charts/offpeak:${version}
${artifacts().includes(names.image) ? pushImage() : `# The image was ${image}.`}
gpg --armor --detach-sign SHA256SUMS
\`\`\`
`,
  )
}

function pushImage(): string {
  const target = `docker://$REGISTRY/offpeak:${version}`
  const archive = image.includes('OCI') ? 'oci-archive' : 'docker-archive'
  return `skopeo copy ${archive}:${names.image} ${target}
cosign sign $REGISTRY/offpeak@$(skopeo inspect --format '{{.Digest}}' ${target})`
}
