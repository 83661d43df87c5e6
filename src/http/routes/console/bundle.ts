// Joins the console's modules into few files, so that a browser that has nothing cached asks seldom: one of all that
// every page needs, and one for each module that is imported when it is needed. Each module stays a function of its own
// with its own names; imports become reads of what another module returned. Only the forms that the console's sources
// use are understood; an unknown one is an error, which the console's tests meet.
import { dirname, join } from 'node:path/posix'

interface Module {
  /** Without its imports and the word `export`. */
  text: string
  imports: { names: string; from: string }[]
  /** `exported: local` pairs. */
  exports: string[]
  /** Modules that it imports when they are needed. */
  lazy: string[]
}

/** The name under which a browser asks for what every page needs. */
export const FIRST_BUNDLE = 'app.js'
const ENTRY = 'main.js'

/**
 * `sources`: JavaScript by path. `packages`: the path of each package that is part of the sources. Whatever else is
 * imported lazily, such as `packages/uplot.js`, stays a file of its own.
 */
export function bundleModules(
  sources: ReadonlyMap<string, string>,
  packages: ReadonlyMap<string, string>,
): Map<string, string> {
  const modules = new Map(
    [...sources].map(([path, text]) => [path, readModule(path, text, packages)] as const),
  )
  const moduleAt = (path: string): Module => {
    const module = modules.get(path)
    if (!module) throw new Error(`the console imports ${path}, which does not exist`)
    return module
  }
  /** A module and all that it imports at once, imported ones first. */
  const closure = (entry: string): string[] => {
    const found = new Set<string>()
    const visit = (path: string, importers: readonly string[]): void => {
      if (importers.includes(path)) throw new Error(`modules import each other: ${importers.join(', ')}`)
      if (found.has(path)) return
      for (const { from } of moduleAt(path).imports) visit(from, [...importers, path])
      found.add(path)
    }
    visit(entry, [])
    return [...found]
  }
  const lazy = [...new Set([...modules.values()].flatMap((module) => module.lazy))].filter((path) =>
    modules.has(path),
  )
  const closures = new Map(lazy.map((entry) => [entry, closure(entry)] as const))
  // What two pages share is loaded with the first one: it would be there twice otherwise, with its state.
  const shared = [...closures.values()].flat().filter((path, i, all) => all.indexOf(path) !== i)
  const first = [...new Set([...shared.flatMap(closure), ...closure(ENTRY)])]
  const known = new Set(first)
  const bundles = new Map<string, string>()
  const textOf = (path: string, root: string): string => functionOf(path, moduleAt(path), root)
  bundles.set(
    FIRST_BUNDLE,
    [
      ...first.filter((path) => path !== ENTRY).map((path) => textOf(path, './')),
      `export { ${first
        .filter((path) => path !== ENTRY)
        .map(nameOf)
        .join(', ')} }`,
      `{\n${bodyOf(moduleAt(ENTRY), './')}\n}`,
    ].join('\n'),
  )
  for (const [entry, paths] of closures) {
    const root = '../'.repeat(entry.split('/').length - 1) || './'
    const own = paths.filter((path) => !known.has(path))
    const used = new Set(own.flatMap((path) => moduleAt(path).imports.map(({ from }) => from)))
    const taken = [...used].filter((path) => known.has(path)).map(nameOf)
    bundles.set(
      entry,
      [
        taken.length === 0 ? '' : `import { ${taken.join(', ')} } from '${root}${FIRST_BUNDLE}'`,
        ...own.map((path) => textOf(path, root)),
        `export const { ${moduleAt(entry)
          .exports.map((pair) => pair.split(':')[0])
          .join(', ')} } = ${nameOf(entry)}`,
      ].join('\n'),
    )
  }
  return bundles
}

const nameOf = (path: string): string => `$${path.replace(/\.js$/, '').replaceAll(/\W/g, '_')}`

function functionOf(path: string, module: Module, root: string): string {
  return `const ${nameOf(path)} = (() => {\n${bodyOf(module, root)}\nreturn { ${module.exports.join(', ')} }\n})()`
}

function bodyOf({ imports, text }: Module, root: string): string {
  const reads = imports.map(
    ({ names, from }) => `const ${names.replaceAll(/\bas\b/g, ':')} = ${nameOf(from)}\n`,
  )
  return reads.join('') + text.replaceAll(/\bimport\('([^']+)'\)/g, `import('${root}$1')`).trim()
}

const STATIC = /(^|[;\n])\s*import\s*(\{[^}]*\})\s*from\s*(['"])([^'"]+)\3;?/g
const DYNAMIC = /\bimport\(\s*(['"])([^'"]+)\1\s*\)/g
const DECLARED = /^export\s+((?:async\s+)?function\*?|const|class)\s+([\w$]+)/gm
const LISTED = /\bexport\s*\{([^}]*)\};?/g
/** Type stripping leaves blanks where types stood. */
const COMMENT_LINE = /^\s*(\/\/|\/\*\*.*\*\/\s*$).*\n/gm

function readModule(path: string, source: string, packages: ReadonlyMap<string, string>): Module {
  const resolve = (target: string): string =>
    target.startsWith('.')
      ? join(dirname(path), target).replace(/\.ts$/, '.js')
      : (packages.get(target) ?? target)
  const module: Module = { text: '', imports: [], exports: [], lazy: [] }
  module.text = source
    .replaceAll(COMMENT_LINE, '')
    .replaceAll(/[ \t]+$/gm, '')
    .replaceAll(STATIC, (_, before: string, names: string, _quote, target: string) => {
      module.imports.push({ names, from: resolve(target) })
      return before
    })
    .replaceAll(DYNAMIC, (_, _quote, target: string) => {
      module.lazy.push(resolve(target))
      return `import('${resolve(target)}')`
    })
    .replaceAll(DECLARED, (_, kind: string, name: string) => {
      module.exports.push(name)
      return `${kind} ${name}`
    })
    .replaceAll(LISTED, (_, names: string) => {
      for (const one of names.split(',')) {
        const [local = '', exported = local] = one.trim().split(/\s+as\s+/)
        if (local !== '') module.exports.push(exported === local ? local : `${exported}: ${local}`)
      }
      return ''
    })
  const unknown = /^\s*(import\b(?!\().*|export\b.*)$/m.exec(module.text)?.[1]
  if (unknown !== undefined) throw new Error(`${path} has a line that cannot be bundled: ${unknown}`)
  return module
}
