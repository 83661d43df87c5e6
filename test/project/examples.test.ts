// Each example is run as its user runs it: a process of its own against a running service.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { offpeak } from '../fakes/offpeak.ts'
import { TestService } from '../service.ts'
import { OFFPEAK } from '../support/offpeak-process.ts'

const run = promisify(execFile)
const ROOT = fileURLToPath(new URL('../..', import.meta.url))

const SAYS: Record<string, RegExp[]> = {
  'plain-batch': [/^question-1: \S/m, /^completed, 3 of 3 lines answered$/m],
  'structured-output': [/^review-3: (positive|neutral|negative), [1-5] of 5$/m],
  'tool-loop': [/^Lima asks for get_weather\(\{"city": ?"(Berlin|Lima|Osaka)"\}\)$/m, /^Osaka: \S/m],
  'spending-cap': [
    /^refused: .*Ask finance@example\.com for more\./m,
    /^completed: user:\d+ has spent 0\.0\d+ USD/m,
  ],
  'webhook-receiver': [/^batch\.completed: batch_\w+ for [\d.e-]+ USD$/m],
  'retry-failures': [
    /^first batch: 2 answered, 2 failed$/m,
    /^ {2}line-2: model_not_found$/m,
    /^second batch: 2 answered, 0 failed$/m,
  ],
}

const service = await TestService.start(`
models:
  - id: sim-1
    context_window: 131072
    max_output_tokens: 4096
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    supports: {structured_output: true, tools: true}
    endpoints: [/v1/chat/completions, /v1/embeddings]
    upstreams: [{type: sim}]
webhooks: {allow_private_networks: true}
`)
test.after(() => service[Symbol.asyncDispose]())

for (const [example, patterns] of Object.entries(SAYS))
  test(`the example ${example} does what it says`, async () => {
    const { stdout } = await run(process.execPath, [`examples/${example}.ts`], {
      cwd: ROOT,
      env: { PATH: process.env.PATH, OFFPEAK_BASE_URL: service.url, OFFPEAK_API_KEY: service.key },
    })
    for (const pattern of patterns) assert.match(stdout, pattern)
  })

/** What is in the files that a recipe makes; those that need a cluster, a system or Airflow are only read by a shell. */
const MAKES: Record<string, [file: string, RegExp]> = {
  'classify-and-review': ['review.csv', /^row,sentiment,text\n/],
  embeddings: ['vectors.jsonl', /"embedding":\[-?[\d.]+,.*"error":null\}\n$/],
  judge: ['judged.csv', /^.*,answer,error,judge_grade,judge_reason,judge_error\n/],
}

for (const [recipe, [file, content]] of Object.entries(MAKES))
  test(`the recipe ${recipe} makes what it says`, async () => {
    const folder = await mkdtemp(join(tmpdir(), 'offpeak-recipe-'))
    try {
      await run('sh', [join(ROOT, `examples/recipes/${recipe}.sh`)], {
        cwd: folder,
        env: {
          PATH: process.env.PATH,
          NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE,
          CLI: `${process.execPath} ${OFFPEAK}`,
          OFFPEAK_BASE_URL: service.url,
          OFFPEAK_API_KEY: service.key,
        },
      })
      assert.match(await readFile(join(folder, file), 'utf8'), content)
      if (file !== 'review.csv') return
      // As a spreadsheet saves it.
      const review = (await readFile(join(folder, file), 'utf8')).replaceAll('"', '')
      await writeFile(join(folder, file), review.replace(/,(?:neutral|negative),/, ',positive,'))
      await run('sh', [join(ROOT, `examples/recipes/${recipe}.sh`), '--merge'], { cwd: folder })
      const [, row] = /^(\d+),positive,/m.exec(review.replace(/,(?:neutral|negative),/, ',positive,')) ?? []
      assert.match(
        await readFile(join(folder, 'final.csv'), 'utf8'),
        new RegExp(`^"${row}","positive",`, 'm'),
      )
    } finally {
      await rm(folder, { recursive: true })
    }
  })

/** Pages whose commands need nothing but a service; lines that need more of a shell are left out. */
const PAGES = ['cli', 'tables', 'webhooks']

for (const page of PAGES)
  test(`the commands of docs/${page}.md run as they are`, async () => {
    const folder = await mkdtemp(join(tmpdir(), 'offpeak-page-'))
    try {
      for (const args of commandsOf(await readFile(join(ROOT, `docs/${page}.md`), 'utf8'))) {
        const own = args.map((word, i) => (args[i - 1] === '-o' ? join(folder, word) : word))
        const { code, err } = await offpeak(service, ...own)
        assert.equal(code, 0, `${args.join(' ')}: ${err}`)
      }
    } finally {
      await rm(folder, { recursive: true })
    }
  })

/** The words of each command in the blocks of a page for a shell. */
function commandsOf(page: string): string[][] {
  const blocks = Array.from(page.matchAll(/^```sh\n([\s\S]*?)^```/gm), ([, code = '']) => code)
  const lines = blocks.join('').replaceAll('\\\n', ' ').split('\n')
  const commands = lines.flatMap((line) => /^(?:npx )?offpeak ([^$|]+)$/.exec(line)?.[1] ?? [])
  assert.ok(commands.length > 0)
  return commands
    .filter((command) => !command.startsWith('next-round'))
    .map((command) => Array.from(command.matchAll(/'([^']*)'|\S+/g), ([word, quoted]) => quoted ?? word))
}

test('every recipe is a script that a shell can read, and is listed', async () => {
  const names = await readdir(join(ROOT, 'examples/recipes'))
  const list = await readFile(join(ROOT, 'examples/README.md'), 'utf8')
  for (const name of names) {
    assert.ok(list.includes(`\`recipes/${name}\``), name)
    if (name.endsWith('.sh')) await run('sh', ['-n', join(ROOT, 'examples/recipes', name)])
  }
})
