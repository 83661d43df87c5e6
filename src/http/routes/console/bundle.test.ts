import assert from 'node:assert/strict'
import { test } from 'node:test'
import { bundleModules } from './bundle.ts'

const NONE: ReadonlyMap<string, string> = new Map()

/** Runs the bundles as a browser does: every file is a module at an address of its own. */
async function run(bundles: ReadonlyMap<string, string>): Promise<Record<string, unknown>> {
  const address = (text: string): string => `data:text/javascript;base64,${btoa(text)}`
  const first = address(bundles.get('app.js') ?? '')
  const page = (bundles.get('pages/page.js') ?? '').replace("'../app.js'", `'${first}'`)
  return { ...(await import(first)), ...(await import(address(page))) }
}

test('modules see what they import, and what two pages share is there once', async () => {
  const modules = new Map([
    ['main.js', `import { state } from './state.js'\nstate.main = true\nawait 0\nstate.after = 1\n`],
    ['state.js', `export const state = { count: 0 }\nconst hidden = 'state'\n`],
    [
      'pages/page.js',
      `import { state } from '../state.js'\nimport { add as plus } from '../shared.js'\nconst hidden = 'page'\nexport function Page() {\n  return [plus(1), state, hidden]\n}\n`,
    ],
    ['pages/other.js', `import { add } from '../shared.js'\nexport const other = add\n`],
    ['shared.js', `let sum = 0\nexport function add(n) {\n  sum += n\n  return sum\n}\n`],
    ['pages.js', `export const load = [() => import('./pages/page.js'), () => import('./pages/other.js')]\n`],
  ])
  modules.set('main.js', `import { load } from './pages.js'\n${modules.get('main.js')}`)
  const bundles = bundleModules(modules, NONE)
  assert.deepEqual([...bundles.keys()].sort(), ['app.js', 'pages/other.js', 'pages/page.js'])
  assert.ok(!bundles.get('pages/page.js')?.includes('sum += n'), 'shared with another page')
  const { Page } = await run(bundles)
  assert.ok(typeof Page === 'function')
  assert.deepEqual(Page(), [1, { count: 0, main: true, after: 1 }, 'page'])
  assert.equal(Page()[0], 2)
})

test('a package is found by its name, with minified imports and exports', async () => {
  const modules = new Map([
    ['main.js', `import { twice } from 'pack'\nglobalThis.bundled = twice(4)\n`],
    ['packages/pack.js', `import{two as t}from"pack/two";var n=n=>t*n;export{n as twice};`],
    ['packages/two.js', `var n=2;export{n as two};`],
  ])
  const packages = new Map([
    ['pack', 'packages/pack.js'],
    ['pack/two', 'packages/two.js'],
  ])
  await run(bundleModules(modules, packages))
  assert.equal(Reflect.get(globalThis, 'bundled'), 8)
})

test('what cannot be bundled is an error that says where', () => {
  const bundle = (modules: Record<string, string>) => () =>
    bundleModules(new Map(Object.entries(modules)), NONE)
  assert.throws(bundle({ 'main.js': `import * as all from './x.js'\n` }), /main\.js.*import \* as all/)
  assert.throws(bundle({ 'main.js': `export default 1\n` }), /main\.js.*export default/)
  assert.throws(bundle({ 'main.js': `import { x } from './x.js'\n` }), /x\.js, which does not exist/)
  const a = `import { b } from './b.js'\nexport const a = b\n`
  const b = `import { a } from './a.js'\nexport const b = a\n`
  assert.throws(
    bundle({ 'main.js': `import { a } from './a.js'\na()\n`, 'a.js': a, 'b.js': b }),
    /import each other/,
  )
})
