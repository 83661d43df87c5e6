// Builds dist/, what a package and a fresh clone run: the service with the packages that it always loads, in few files. A module of its
// own costs some 10 KiB of memory in each process, and a service has two thousand; so bundled, both processes take a
// third less (docs/performance.md). Names stay as they are written, for stack traces.
//
//   npm run build
import { existsSync, globSync, mkdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import type { Plugin } from 'esbuild'
import { buildConsole } from './src/http/routes/console/assets.ts'

const ROOT = import.meta.dirname
const SRC = join(ROOT, 'src')
const DIST = join(ROOT, 'dist')

/** What a process or a thread starts with. Each has files of its own: a file that two share is a module more in both. */
const ENTRIES = [
  'main.ts',
  'compose/worker-process.ts',
  'intake/streaming-validation-thread.ts',
  'tables/schema-check-process.ts',
  'tables/row-lines-process.ts',
]
/** Loaded only when needed, or found by their files. */
const EXTERNAL = [
  ...['@aws-sdk/*', '@opentelemetry/*', 'jose', 'pg', 'undici', 'pino-pretty', 'mustache'],
  ...['csv-parse', 'hyparquet', 'hyparquet-writer', 'hyparquet-compressors'],
  // Makes the console for who runs the sources; dist/ has it.
  'esbuild',
  // Fastify's own compilers, in place of which the server has others.
  ...['@fastify/ajv-compiler', '@fastify/fast-json-stringify-compiler', 'light-my-request'],
]

/** Fastify and prom-client load these for what is not used here; they take 10 MiB, and a tenth of the start. */
const unused: Plugin = {
  name: 'unused',
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /^@opentelemetry\/api$/ }, ({ path, importer }) =>
      importer.includes('prom-client') ? { path, namespace: 'traced' } : null,
    )
    onLoad({ filter: /.*/, namespace: 'traced' }, () => ({ contents: 'module.exports = {}' }))
    onResolve({ filter: /^(node:)?https?2?$/ }, ({ path, importer, kind }) => {
      const name = path.replace('node:', '')
      if (name === 'http' || kind !== 'require-call' || !importer.includes('node_modules')) return null
      return { path: name, namespace: 'unused' }
    })
    onLoad({ filter: /.*/, namespace: 'unused' }, ({ path }) => ({
      contents: `module.exports = new Proxy({}, { get: (_, name) => process.getBuiltinModule('node:${path}')[name] })`,
    }))
  },
}

/** For packages in CommonJS, in files that have some. */
const REQUIRE = "import{createRequire as $r}from'node:module';const require=$r(import.meta.url);"

/** A module says by itself where in the tree it was written. `folder`: of the file of which it becomes a part. */
const places = (folder: string): Plugin => ({
  name: 'places',
  setup({ onLoad }) {
    onLoad({ filter: /\.ts$/ }, ({ path }) => {
      if (!path.startsWith(SRC)) return null
      const place = relative(folder, path).replaceAll('\\', '/').replace(/ts$/, 'js')
      const url = `new URL(${JSON.stringify(place)}, import.meta.url).href`
      const contents = readFileSync(path, 'utf8').replaceAll('import.meta.url', url)
      return { contents, loader: 'ts' }
    })
  },
})

const esbuild = await import('esbuild').catch(() => null)
if (esbuild === null) {
  process.stderr.write(
    'dist/ is not built: npm ci --omit=dev leaves esbuild out. In a clone, offpeak runs its sources.\n',
  )
  process.exit(process.env.npm_lifecycle_event === 'prepare' ? 0 : 1)
}
/** When this began: a source that changes later makes dist/ stale (bin/offpeak.js). */
const began = new Date()
const written = new Set<string>()
const { files, inputs } = await buildConsole()
for (const [path, text] of Object.entries(files)) write(`console/${path}`, text)
for (const entry of ENTRIES) {
  const { metafile, outputFiles } = await esbuild.build({
    // The paths of the metafile are relative to it, wherever this was started.
    absWorkingDir: ROOT,
    entryPoints: [join(SRC, entry)],
    outdir: dirname(join(DIST, entry)),
    chunkNames: '[name]-[hash]',
    bundle: true,
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node24',
    minifyWhitespace: true,
    legalComments: 'none',
    external: EXTERNAL,
    plugins: [places(dirname(join(SRC, entry))), unused],
    metafile: true,
    write: false,
    logLevel: 'warning',
    banner: { js: REQUIRE },
  })
  for (const { path, text } of outputFiles) {
    // It would double the memory of the whole file: write it as an escape.
    if (/[^\0-\xff]/.test(text)) throw new Error(`${path} has a character beyond Latin-1`)
    const own = text.replace(REQUIRE, '')
    write(relative(DIST, path), /\brequire\b/.test(own) ? text : own)
  }
  inputs.push(...Object.keys(metafile.inputs))
}
const made = [...new Set(inputs)]
write('LICENSES.txt', licenses(made))
// What bin/offpeak.js compares with the time of this list.
const sources = made.filter((path) => path.startsWith('src/')).sort()
write('sources.json', JSON.stringify(['build.ts', 'package-lock.json', ...sources]))
for (const file of globSync('**/*.*', { cwd: DIST })) if (!written.has(file)) rmSync(join(DIST, file))
try {
  utimesSync(join(DIST, 'sources.json'), began, began)
} catch {
  // The clone is for reading alone, and dist/ as it should be.
}

/** The notices of the packages that became part of dist/. */
function licenses(inputs: readonly string[]): string {
  // Where node_modules is a link, paths begin with the place that it leads to.
  const names = new Set(inputs.flatMap((path) => /\bnode_modules\/(?:@[^/]+\/)?[^/]+/.exec(path)?.[0] ?? []))
  return [...names]
    .sort()
    .map((folder) => {
      const { name, version, license }: Record<string, string> = JSON.parse(
        readFileSync(join(ROOT, folder, 'package.json'), 'utf8'),
      )
      const texts = globSync('LICEN[CS]E*', { cwd: join(ROOT, folder) }).map((file) =>
        readFileSync(join(ROOT, folder, file), 'utf8').trim(),
      )
      return `${name} ${version} (${license})\n\n${texts.join('\n\n')}\n`
    })
    .join(`\n${'-'.repeat(80)}\n\n`)
}

/** Leaves a file that is as it should be: a service may be running from it. */
function write(path: string, text: string): void {
  const file = join(DIST, path)
  written.add(path)
  if (existsSync(file) && readFileSync(file, 'utf8') === text) return
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(file, text)
}
