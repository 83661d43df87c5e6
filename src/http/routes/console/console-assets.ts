// The files of the console as a browser loads them. In a clone their types are stripped here, once; in a package
// they were compiled. Imports get the addresses at which the files are served, so the browser needs no import map,
// which a strict policy would not let the page hold. Everything is kept compressed.
import { createHash } from 'node:crypto'
import { globSync, readFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { gzipSync } from 'node:zlib'

export interface Asset {
  type: string
  bytes: Buffer
  gzip: Buffer
}

export interface ConsoleAssets {
  /** By path below the folder in which they are served. */
  files: ReadonlyMap<string, Asset>
  /** Changes with any of them: part of their address, so that browsers may keep them for good. */
  version: string
  /** The page that loads them. `signedIn`: whether the browser sent a cookie. */
  page: (signedIn: boolean) => string
}

const SOURCES = new URL('../../../console/', import.meta.url)

const JAVASCRIPT = 'text/javascript; charset=utf-8'
const TYPES: Readonly<Record<string, string>> = {
  js: JAVASCRIPT,
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
}

/** Packages that the browser loads, by the names that sources import. */
const PACKAGES: Readonly<Record<string, string>> = {
  preact: 'packages/preact.js',
  'preact/hooks': 'packages/preact-hooks.js',
  uplot: 'packages/uplot.js',
}

/** What every page needs at once; pages and languages are loaded when they are opened. */
const LAZY = /^(pages|messages)\/|uplot/

export function readConsoleAssets(): ConsoleAssets {
  const texts = new Map<string, string>()
  for (const path of globSync('**/*.{ts,js,css,svg}', { cwd: SOURCES })) {
    if (path.endsWith('.test.ts') || path.endsWith('.d.ts')) continue
    const text = readFileSync(new URL(path, SOURCES), 'utf8')
    const served = path.replaceAll('\\', '/').replace(/\.ts$/, '.js')
    texts.set(
      served,
      served.endsWith('.js') ? browserModule(served, path.endsWith('.ts') ? stripped(text) : text) : text,
    )
  }
  for (const [name, served] of Object.entries(PACKAGES)) texts.set(served, packageModule(name, served))
  texts.set('packages/uplot.css', readFileSync(uplotFile('uPlot.min.css'), 'utf8'))
  const files = new Map([...texts].map(([path, text]) => [path, asset(path, text)] as const))
  const hash = createHash('sha256')
  for (const [path, { bytes }] of [...files].sort(([a], [b]) => (a < b ? -1 : 1)))
    hash.update(path).update(bytes)
  const version = hash.digest('hex').slice(0, 12)
  return { files, version, page: (signedIn) => page([...files.keys()], version, signedIn) }
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

/** `path` is where the module is served, from which imports are resolved. */
function browserModule(path: string, text: string): string {
  const root = '../'.repeat(path.split('/').length - 1) || './'
  const addressed = text.replace(
    /(\bfrom\s*|\bimport\s*\(?\s*)(['"])([^'"]+)\2/g,
    (whole, before: string, quote: string, target: string) => {
      if (target.startsWith('.')) return before + quote + target.replace(/\.ts$/, '.js') + quote
      const served = PACKAGES[target]
      return served === undefined ? whole : before + quote + root + served + quote
    },
  )
  // Comments are for those who read the source.
  return addressed.replace(/^\s*(\/\/|\/\*\*.*\*\/\s*$).*\n/gm, '').replace(/[ \t]+$/gm, '')
}

function uplotFile(name: string): URL {
  return new URL(name, import.meta.resolve('uplot'))
}

function packageModule(name: string, served: string): string {
  if (name !== 'uplot') return browserModule(served, readFileSync(new URL(import.meta.resolve(name)), 'utf8'))
  // Its module is not minified; its script is, and leaves one variable.
  return `${readFileSync(uplotFile('uPlot.iife.min.js'), 'utf8')}\nexport default uPlot\n`
}

function asset(path: string, text: string): Asset {
  const bytes = Buffer.from(text)
  return {
    type: TYPES[path.split('.').at(-1) ?? ''] ?? JAVASCRIPT,
    bytes,
    gzip: gzipSync(bytes, { level: 9 }),
  }
}

function page(paths: readonly string[], version: string, signedIn: boolean): string {
  const at = (path: string): string => `/console/assets/${version}/${path}`
  const modules = paths
    .filter((path) => path.endsWith('.js') && (!LAZY.test(path) || path === 'messages/en.js'))
    .sort()
  return `<!doctype html>
<html lang="en" data-cookie="${signedIn ? 'yes' : 'no'}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Offpeak</title>
<link rel="icon" href="${at('icon.svg')}" type="image/svg+xml">
<link rel="stylesheet" href="${at('packages/uplot.css')}">
<link rel="stylesheet" href="${at('console.css')}">
${modules.map((path) => `<link rel="modulepreload" href="${at(path)}">`).join('\n')}
<script type="module" src="${at('main.js')}"></script>
</head>
<body>
<div id="app"><noscript>The console needs JavaScript. The same can be done with the command line and the API: <a href="/docs">/docs</a></noscript></div>
</body>
</html>
`
}
