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
  /** By path below the folder in which they are served. */
  files: ReadonlyMap<string, Asset>
  /** The files that the script of all pages imports at once: browsers load them beside the script. */
  imported: readonly string[]
  /** Changes with any of them: part of their address, so that browsers may keep them for good. */
  version: string
}

/** The imports in the output of esbuild; imports of parts that few pages need are calls. */
const STATIC_IMPORT = /(?:from|import)"\.\/([\w-]+\.js)"/g

const BUILT = new URL('../../../console/', import.meta.url)

const TYPES: Readonly<Record<string, string>> = {
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
}

let assets: Promise<ConsoleAssets> | null = null

/** Read, or built, once in the life of a process; again after it failed. */
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

/** The table of texts has each in every language; a browser loads those of one, and English. */
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

/** Texts by the path at which a browser asks for them. */
type ConsoleFiles = Readonly<Record<string, string>>

/**
 * For `npm run build`, and for a process that runs the sources, in a tenth of a second. `inputs`: what became part of it, by
 * path.
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
    inputs: Object.keys(metafile.inputs).map((path) => relative(ROOT, join(SOURCES, path))),
  }
}
