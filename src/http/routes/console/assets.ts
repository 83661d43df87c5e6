// The files that the console's pages load: beside the service where that is built, and else built here.
import { createHash } from 'node:crypto'
import { globSync, readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'

interface Asset {
  type: string
  bytes: Uint8Array
  gzip: Uint8Array
}

export interface ConsoleAssets {
  /** By path below the folder in which they are served. */
  files: ReadonlyMap<string, Asset>
  /** Changes with any of them: part of their address, so that browsers may keep them for good. */
  version: string
}

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
    ? await (await (await import('./build-console.ts')).buildConsole()).files
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
  return { files, version: hash.digest('hex').slice(0, 12) }
}
