// Reads the console's sources and makes of them the files that a browser loads. In a clone their types are stripped
// here; in a package they were compiled.
import { createHash } from 'node:crypto'
import { globSync, readFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { gzipSync } from 'node:zlib'
import { bundleModules } from './bundle.ts'

interface Asset {
  type: string
  bytes: Uint8Array
  gzip: Uint8Array
}

export interface PreparedAssets {
  /** By path below the folder in which they are served. */
  files: ReadonlyMap<string, Asset>
  /** Changes with any of them: part of their address, so that browsers may keep them for good. */
  version: string
}

const SOURCES = new URL('../../../console/', import.meta.url)

const JAVASCRIPT = 'text/javascript; charset=utf-8'
const TYPES: Readonly<Record<string, string>> = {
  js: JAVASCRIPT,
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
}

/** Modules of the rest of the service that the console uses; they import nothing. */
const SHARED = ['../domain/event']

/** Packages that are part of what every page loads, by the names that sources import. */
const PACKAGES: ReadonlyMap<string, string> = new Map([
  ['preact', 'packages/preact.js'],
  ['preact/hooks', 'packages/preact-hooks.js'],
])
/** Loaded by pages with a chart. */
const CHARTS = { name: 'uplot', served: 'packages/uplot.js' }

export function prepareAssets(): PreparedAssets {
  const modules = new Map<string, string>()
  const texts = new Map<string, string>()
  for (const path of globSync('**/*.{ts,js,css,svg}', { cwd: SOURCES })) {
    if (path.endsWith('.test.ts') || path.endsWith('.d.ts')) continue
    const text = readFileSync(new URL(path, SOURCES), 'utf8')
    const served = path.replaceAll('\\', '/').replace(/\.ts$/, '.js')
    if (!served.endsWith('.js')) texts.set(served, text)
    else modules.set(served, path.endsWith('.ts') ? stripped(text) : text)
  }
  for (const name of SHARED) {
    const source = import.meta.url.endsWith('.ts') ? `${name}.ts` : `${name}.js`
    const text = readFileSync(new URL(source, SOURCES), 'utf8')
    modules.set(`${name}.js`, source.endsWith('.ts') ? stripped(text) : text)
  }
  for (const [name, served] of PACKAGES)
    modules.set(
      served,
      readFileSync(new URL(import.meta.resolve(name)), 'utf8').replace(/\n\/\/# source.*/, ''),
    )
  const packages = new Map([...PACKAGES, [CHARTS.name, CHARTS.served] as const])
  for (const [path, text] of bundleModules(modules, packages)) texts.set(path, text)
  // Its module is not minified; its script is, and leaves one variable.
  texts.set(CHARTS.served, `${readFileSync(chartFile('uPlot.iife.min.js'), 'utf8')}\nexport default uPlot\n`)
  texts.set('console.css', `${readFileSync(chartFile('uPlot.min.css'), 'utf8')}\n${texts.get('console.css')}`)
  const files = new Map([...texts].map(([path, text]) => [path, asset(path, text)] as const))
  const hash = createHash('sha256')
  for (const [path, { bytes }] of [...files].sort(([a], [b]) => (a < b ? -1 : 1)))
    hash.update(path).update(bytes)
  return { files, version: hash.digest('hex').slice(0, 12) }
}

/** Stripping is experimental, and says so; a clone needs no warning about it. */
function stripped(text: string): string {
  const { emitWarning } = process
  process.emitWarning = () => {}
  try {
    return stripTypeScriptTypes(text)
  } finally {
    process.emitWarning = emitWarning
  }
}

function chartFile(name: string): URL {
  return new URL(name, import.meta.resolve(CHARTS.name))
}

function asset(path: string, text: string): Asset {
  const bytes = Buffer.from(text)
  return {
    type: TYPES[path.split('.').at(-1) ?? ''] ?? JAVASCRIPT,
    bytes,
    gzip: gzipSync(bytes, { level: 9 }),
  }
}
