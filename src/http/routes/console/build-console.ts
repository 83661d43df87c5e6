// Makes of the console's sources the files that a browser loads: one script of all pages, minified, beside what few
// pages need (charts, German). `npm run build` does it; a process that runs the sources does it for itself, in a tenth of a second.
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'

const SOURCES = fileURLToPath(new URL('../../../console', import.meta.url))
const ROOT = join(SOURCES, '../..')

/** Texts by the path at which a browser asks for them. */
type ConsoleFiles = Readonly<Record<string, string>>

/** `inputs`: what became part of it, by path. */
export async function buildConsole(): Promise<{ files: ConsoleFiles; inputs: string[] }> {
  const { build, stop } = await import('esbuild')
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
