#!/usr/bin/env node
// Starts the command line: from source in a clone, from the build in an installed package.
import { existsSync } from 'node:fs'
import { enableCompileCache } from 'node:module'
import { compileCacheFolder } from './compile-cache.js'

const [major, minor] = process.versions.node.split('.').map(Number)
if (major < 24 || (major === 24 && minor < 15)) {
  console.error(
    `offpeak needs Node 24.15 or newer, and this is Node ${process.versions.node}. ` +
      'In a clone, "npx offpeak" uses the Node that "npm ci" installed.',
  )
  process.exit(1)
}
// With the cache, starting from source is as fast as from a build from the second start on.
const folder = compileCacheFolder()
if (folder !== undefined) enableCompileCache(folder)
const source = new URL('../src/main.ts', import.meta.url)
await import(existsSync(source) ? source.href : new URL('../dist/main.js', import.meta.url).href)
