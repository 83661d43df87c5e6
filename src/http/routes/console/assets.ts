// The files that the console's pages load, as built beside the service or else built here: one minified script for the
// pages that are open all day, and others for other pages, charts, Markdown and German.
import { createHash } from 'node:crypto'
import { globSync, readFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import type { Plugin } from 'esbuild'

interface Asset {
  type: string
  bytes: Uint8Array
  gzip: Uint8Array
}

export interface ConsoleAssets {
  /** The files by path below the folder from which they are served. */
  files: ReadonlyMap<string, Asset>
  /** The static imports of the script of all pages, which browsers load at the same time. */
  imported: readonly string[]
  /** A hash of all files, part of their URL, so that browsers may cache them for good. */
  version: string
}

/** The pattern of static imports in esbuild's output; dynamic imports are calls. */
const STATIC_IMPORT = /(?:from|import)"\.\/([\w-]+\.js)"/g

const BUILT = new URL('../../../console/', import.meta.url)

const TYPES: Readonly<Record<string, string>> = {
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
}

let assets: Promise<ConsoleAssets> | null = null

/** Reads or builds the files once in a process, and again after a failure. */
export function consoleAssets(): Promise<ConsoleAssets> {
  assets ??= prepare().catch((error) => {
    assets = null
    throw error
  })
  return assets
}

async function prepare(): Promise<ConsoleAssets> {
  const texts = import.meta.url.endsWith('.ts')
    ? (await buildConsole()).files
    : Object.fromEntries(
        globSync('*', { cwd: BUILT }).map((path) => [path, readFileSync(new URL(path, BUILT), 'utf8')]),
      )
  const hash = createHash('sha256')
  const files = new Map<string, Asset>()
  for (const [path, text] of Object.entries(texts).sort(([a], [b]) => (a < b ? -1 : 1))) {
    const bytes = Buffer.from(text)
    hash.update(path).update(bytes)
    const type = TYPES[path.split('.').at(-1) ?? ''] ?? 'application/octet-stream'
    files.set(path, { type, bytes, gzip: await promisify(gzip)(bytes, { level: 9 }) })
  }
  const imported = [...(texts['app.js'] ?? '').matchAll(STATIC_IMPORT)].map(([, path = '']) => path)
  return { files, imported, version: hash.digest('hex').slice(0, 12) }
}

/** An esbuild plugin that splits the table of texts: a browser loads one language, and English. */
const onePerLanguage: Plugin = {
  name: 'one-per-language',
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /\/texts\.ts$/ }, ({ path, importer, resolveDir }) => ({
      path: join(resolveDir, path),
      suffix: importer.endsWith('de.ts') ? '?de' : '?en',
    }))
    onLoad({ filter: /\/texts\.ts$/ }, async ({ path, suffix }) => {
      const { messages }: { messages: Record<string, [string, string]> } = await import(path)
      const texts = Object.entries(messages).map(([key, [en, de]]) => [
        key,
        suffix === '?de' ? ['', de] : [en],
      ])
      return { contents: `export const messages = ${JSON.stringify(Object.fromEntries(texts))}` }
    })
  },
}

const SOURCES = fileURLToPath(new URL('../../../console', import.meta.url))
const ROOT = join(SOURCES, '../..')

/** The texts of files by path in the browser's request. */
type ConsoleFiles = Readonly<Record<string, string>>

/**
 * Builds the console, for `npm run build` or from the sources, in a tenth of a second. `inputs`: the paths of used
 * sources.
 */
export async function buildConsole(): Promise<{ files: ConsoleFiles; inputs: string[] }> {
  const { build, stop } = await import('esbuild')
  const { outputFiles, metafile } = await build({
    absWorkingDir: SOURCES,
    entryPoints: { app: 'app.tsx', console: 'console.css', icon: 'icon.svg' },
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
    plugins: [onePerLanguage],
  })
  await stop()
  const files = outputFiles.map(({ path, text }) => [relative(SOURCES, path), text] as const)
  return {
    files: Object.fromEntries(files),
    // A file that is used once per language has the language behind its path.
    inputs: Object.keys(metafile.inputs).map((path) => relative(ROOT, join(SOURCES, path.split('?')[0]!))),
  }
}
