// Compares the reference, the JSON Schema and the examples with the schema of the configuration.
import assert from 'node:assert/strict'
import { globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { after, describe, test } from 'node:test'
import { Compile } from 'typebox/schema'
import { parse } from 'yaml'
import { configSchema } from '../../docs/generate.ts'
import { keysOf, loadConfig } from './load.ts'
import { CONFIG_FILE } from './schema.ts'
import { offpeakVariables } from './sources.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const page = readFileSync(join(ROOT, 'docs/configuration.md'), 'utf8')
const folder = mkdtempSync(join(tmpdir(), 'offpeak-documentation-'))
after(() => rmSync(folder, { recursive: true }))

describe('docs/configuration.md', () => {
  /** The rows of the reference's tables of keys: key and variable. */
  const rows = new Map(
    [...page.matchAll(/^\| `([^`]+)` \| (?:`(OFFPEAK_\w+)` )?\| [^|]+ \| [^|]+ \|$/gm)].map(
      ([, key = '', variable]) => [key, variable ?? null],
    ),
  )

  test('names every key with its variable, and no key that does not exist', () => {
    const sorted = (map: Map<string, string | null>) =>
      [...map].map(([key, variable]) => `${key} ${variable}`).sort()
    assert.deepEqual(sorted(rows), sorted(keysOf(CONFIG_FILE)))
  })

  test('has its meanings in docs/offpeak.schema.json, which npm run docs writes', () => {
    assert.equal(readFileSync(join(ROOT, 'docs/offpeak.schema.json'), 'utf8'), configSchema())
  })

  test('names the defaults that are in force', () => {
    const set: NodeJS.ProcessEnv = {}
    for (const [, variable = '', value = ''] of page.matchAll(
      /^\| `[^`]+` \| `(OFFPEAK_\w+)` \| `([^`]+)` \| /gm,
    )) {
      if (variable !== 'OFFPEAK_PLANS' && variable !== 'OFFPEAK_MODELS') set[variable] = value
    }
    assert.ok(offpeakVariables(set).size > 15)
    const given = loadConfig({ env: set, cwd: folder, now: 0 })
    assert.deepEqual(given, loadConfig({ env: {}, cwd: folder, now: 0 }))
  })
})

describe('the examples', () => {
  const env = { VLLM_KEY: 'k' }

  for (const path of globSync('examples/*.yaml', { cwd: ROOT })) {
    test(`${path} is a configuration`, () => {
      assert.ok(loadConfig({ file: join(ROOT, path), env }).models.length > 0)
      const schema = Compile(JSON.parse(configSchema()))
      const [, problems] = schema.Errors(parse(readFileSync(join(ROOT, path), 'utf8')))
      assert.deepEqual(problems, [])
    })
  }

  test('examples/offpeak.yaml shows the defaults, and what else it adds is marked', () => {
    const file = join(ROOT, 'examples/offpeak.yaml')
    const { plans, models, ...shown } = loadConfig({ file, env, cwd: folder, now: 0 })
    const {
      plans: default_plans,
      models: default_models,
      ...defaults
    } = loadConfig({ env: {}, cwd: folder, now: 0 })
    assert.deepEqual(shown, defaults)
    for (const [name, plan] of default_plans) assert.deepEqual(plans.get(name), plan)
    assert.deepEqual(models[0], default_models[0])
  })

  test('examples/offpeak.yaml parses with its hashes removed', () => {
    const text = readFileSync(join(ROOT, 'examples/offpeak.yaml'), 'utf8')
    const start = text.indexOf('  # - id: qwen3-8b')
    const end = text.indexOf('\nworker:')
    assert.ok(start > 0 && end > start)
    const file = join(folder, 'without-hashes.yaml')
    writeFileSync(
      file,
      text.slice(0, start) + text.slice(start, end).replaceAll(/^ {2}# /gm, '  ') + text.slice(end),
    )
    const { models } = loadConfig({ file, env })
    assert.deepEqual(
      models.at(-1)?.upstreams.map(({ name }) => name),
      ['gpu-1.internal:8000/v1', 'llama-server', 'spare'],
    )
  })

  const pages = globSync('docs/**/*.md', { cwd: ROOT })
  for (const path of [...pages, 'README.md'].filter((name) => globSync(name, { cwd: ROOT }).length > 0)) {
    const blocks = [...readFileSync(join(ROOT, path), 'utf8').matchAll(/^```yaml\n([\s\S]*?)^```$/gm)]
    for (const [i, [, yaml = '']] of blocks.entries()) {
      if (!/^(region|listen|models|plans|database|blobs|worker):/m.test(yaml)) continue
      test(`${path}, configuration ${i + 1}, is one`, () => {
        const file = join(folder, 'block.yaml')
        for (const [, key = ''] of yaml.matchAll(/api_key_file: \.\.\/([^\s,}]+)/g)) {
          mkdirSync(join(folder, dirname(key)), { recursive: true })
          writeFileSync(join(folder, key), 'k')
        }
        writeFileSync(file, yaml.replaceAll('api_key_file: ..', `api_key_file: ${folder}`))
        const named = [...yaml.matchAll(/api_key_env: *(\w+)/g)].map(([, name = '']) => [name, 'k'])
        const aws = { AWS_ACCESS_KEY_ID: 'i', AWS_SECRET_ACCESS_KEY: 's' }
        loadConfig({ file, env: { ...Object.fromEntries(named), ...aws } })
      })
    }
  }
})
