// The console's files, prepared once in a process of its own: stripping types takes a few tenths of a second and the
// memory of a compiler, which a thread would leave to the API.
import { type ChildProcess, fork } from 'node:child_process'
import { getCompileCacheDir } from 'node:module'
import { FIRST_BUNDLE } from './bundle.ts'
import type { PreparedAssets } from './prepare-assets.ts'

export class ConsoleAssets {
  #prepared: Promise<PreparedAssets> | null = null
  #process: ChildProcess | null = null

  /** Prepares them, unless that was done or is being done. */
  get(): Promise<PreparedAssets> {
    this.#prepared ??= this.#prepare()
    return this.#prepared
  }

  close(): void {
    this.#process?.kill()
  }

  #prepare(): Promise<PreparedAssets> {
    const file = import.meta.url.endsWith('.ts')
      ? './prepare-assets-process.ts'
      : './prepare-assets-process.js'
    const cache = getCompileCacheDir()
    const child = fork(new URL(file, import.meta.url), {
      env: { ...process.env, ...(cache === undefined ? {} : { NODE_COMPILE_CACHE: cache }) },
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    })
    this.#process = child
    // It alone does not keep the service running.
    child.unref()
    child.channel?.unref()
    return new Promise((resolve: (prepared: PreparedAssets) => void, reject) => {
      child.once('message', resolve)
      child.once('error', reject)
      child.once('exit', () => reject(new Error('the console was not prepared: its process exited')))
    })
  }
}

/** The module of an address below /console, where its name is not the first part of it. */
const PAGE_MODULES: readonly (readonly [RegExp, string])[] = [
  [/^\/batches\/[^/]+\/lines\//, 'line'],
  [/^\/batches\/./, 'batch'],
  [/^\/?$/, 'batches'],
  [/^\/new$/, 'new-batch'],
]

/** The page that loads them. `path`: the address below /console; `signedIn`: whether the browser sent a cookie. */
export function consolePage({ version, files }: PreparedAssets, path: string, signedIn: boolean): string {
  const [, name = /^\/(\w+)/.exec(path)?.[1]] = PAGE_MODULES.find(([pattern]) => pattern.test(path)) ?? []
  const module = `pages/${name}.js`
  const at = (path: string): string => `/console/assets/${version}/${path}`
  return `<!doctype html>
<html lang="en" data-cookie="${signedIn ? 'yes' : 'no'}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Offpeak</title>
<link rel="icon" href="${at('icon.svg')}" type="image/svg+xml">
<link rel="stylesheet" href="${at('console.css')}">
<script type="module" src="${at(FIRST_BUNDLE)}"></script>${
    signedIn && files.has(module) ? `\n<link rel="modulepreload" href="${at(module)}">` : ''
  }
</head>
<body>
<div id="app"><noscript>The console needs JavaScript. The same can be done with the command line and the API: <a href="/docs">/docs</a></noscript></div>
</body>
</html>
`
}
