// Makes of the console's sources the files that a browser loads: one script of all pages, minified, beside what few
// pages need (charts, German). `npm run build` does it for a package; a clone does it once, and keeps what it made.
import { createHash } from 'node:crypto'
import { globSync, readFileSync } from 'node:fs'
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'

const SOURCES = fileURLToPath(new URL('../../../console', import.meta.url))
const ROOT = join(SOURCES, '../..')
/** Beside the packages: whoever may write here may change the service anyway. */
const CACHE = join(ROOT, 'node_modules/.cache')

/** Texts by the path at which a browser asks for them. */
type ConsoleFiles = Readonly<Record<string, string>>

/** `inputs`: what became part of it, by path. */
export async function buildConsole(): Promise<{ files: ConsoleFiles; inputs: string[] }> {
  const { build, stop } = await import('esbuild-wasm')
  const { outputFiles, metafile } = await build({
    absWorkingDir: SOURCES,
    entryPoints: { app: 'main.tsx', console: 'console.css', icon: 'icon.svg' },
    outdir: SOURCES,
    chunkNames: '[name]-[hash]',
    write: false,
    bundle: true,
    splitting: true,
    format: 'esm',
    platform: 'browser',
    target: ['es2024', 'chrome125', 'firefox128', 'safari18'],
    jsx: 'automatic',
    jsxImportSource: 'preact',
    loader: { '.svg': 'copy' },
    charset: 'utf8',
    minify: true,
    legalComments: 'none',
    logLevel: 'silent',
    metafile: true,
  })
  await stop()
  const files = outputFiles.map(({ path, text }) => [relative(SOURCES, path), text] as const)
  return {
    files: Object.fromEntries(files),
    inputs: Object.keys(metafile.inputs).map((path) => relative(ROOT, join(SOURCES, path))),
  }
}

/** As built for these very sources and packages before, or else built now. */
export async function cachedConsole(): Promise<ConsoleFiles> {
  const hash = createHash('sha256')
  const inputs = globSync('**/*', { cwd: SOURCES, withFileTypes: true })
    .filter((entry) => entry.isFile() && !entry.name.endsWith('.test.ts'))
    .map((entry) => join(entry.parentPath, entry.name))
    .sort()
  for (const path of [...inputs, fileURLToPath(import.meta.url), join(ROOT, 'package-lock.json')])
    hash.update(path).update(readFileSync(path))
  const key = hash.digest('hex')
  const place = join(CACHE, 'offpeak-console.json')
  const kept = await readFile(place, 'utf8').then(JSON.parse, () => null)
  if (kept?.key === key) return kept.files
  const { files } = await buildConsole()
  const part = `${place}.${process.pid}`
  // A clone that cannot be written to builds again at its next start.
  await mkdir(CACHE, { recursive: true })
    .then(() => writeFile(part, JSON.stringify({ key, files })))
    .then(() => rename(part, place))
    .catch(() => {})
  return files
}
