// Every command once, against a real service, and what each prints: as the service answers, as a newer one may, and as an
// older one may. A new command needs a row.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { after, before, describe, test } from 'node:test'
import { Command } from 'commander'
import { COMMANDS } from '../../src/cli/program.ts'
import type { Shell as ProgramShell } from '../../src/cli/shell.ts'
import { BATCH_STATUSES, isTerminal } from '../../src/domain/batch.ts'
import { isRecord } from '../../src/domain/json-record.ts'
import { type UnreliableProxy, unreliableProxy } from '../fakes/unreliable-proxy.ts'
import { chatLine, Shell } from '../support/shell.ts'

interface Row {
  /** After the command's name; text that earlier rows have found stands for its name in braces. */
  args?: readonly string[]
  prints: RegExp
  /** Of standard error. */
  tells?: RegExp
  code?: number
  /** What is found in its output, under these names, for later rows. */
  finds?: readonly string[]
  /**
   * Without the service: what it reads is named in its arguments (`files`), or is a data folder of its own (`stores`); or it
   * goes on until it is stopped, and `prints` is its first line (`serves`).
   */
  by?: 'files' | 'stores' | 'serves'
}

const TABLE = ['--model', 'sim-1', '--prompt', 'Classify: {{text}}']
/** In an order in which each finds what it needs. */
const ROWS: Readonly<Record<string, Row>> = {
  'files upload': { args: ['{input}'], prints: /^(?<file>file_\w+)\n$/, tells: /2 lines/, finds: ['file'] },
  'files list': { prints: /^ID +PURPOSE.*\n{file}.* in\.jsonl\n/ },
  'files get': { args: ['{file}'], prints: /^id +{file}\n(.*\n)*line_count +2\n/ },
  'files content': { args: ['{file}'], prints: /^\{"custom_id":"one".*\n.*"two".*\n$/ },
  'batches create': { args: ['{file}'], prints: /^(?<batch>batch_\w+)\n$/, finds: ['batch'] },
  'batches wait': { args: ['{batch}'], prints: /^$/, tells: /completed .*2\/2 lines/ },
  'batches get': { args: ['{batch}'], prints: /^id +{batch}\n(.*\n)*status +completed\n/ },
  'batches list': { prints: /^ID +NAME.*\n{batch} .*completed +\d+% +2 / },
  'batches find': { args: ['one'], prints: /^BATCH .*\n{batch} +1 +one +completed .*\n/ },
  'batches results': {
    args: ['{batch}', '-o', '{folder}/r.out', '--errors', '{folder}/r.err'],
    prints: /^$/,
    tells: /answers: .*r\.out\nerrors: .*\(empty\)/,
  },
  'batches export': { args: ['{batch}'], prints: /^$/, tells: /output_url/, code: 1 },
  results: { args: ['{batch}', '-o', '{folder}/rows.csv'], prints: /^$/, tells: /rows\.csv/ },
  'batches results as they come': {
    args: ['{batch}', '--follow'],
    prints: /^\{"id":"(?<request>req_\w+)","custom_id":"one".*\n.*"two".*\n$/,
    finds: ['request'],
  },
  'requests list': { args: ['--status', 'pending'], prints: /^$|^ID +STATUS/ },
  'requests cancel': { args: ['{request}'], prints: /^{request} is completed\n$/ },
  'requests get': { args: ['{request}'], prints: /"custom_id": "one"/ },
  run: {
    args: ['{mixed}', '-o', '{folder}/m.out', '--errors', '{folder}/m.err', '--again'],
    prints: /^$/,
    tells: /(?<failed>batch_\w+) completed: 1 line answered, 1 failed/,
    code: 3,
    finds: ['failed'],
  },
  retry: {
    args: ['{failed}'],
    prints: /^(?<again>batch_\w+)\n$/,
    tells: /1 failed line of {failed}/,
    finds: ['again'],
  },
  'files upload slow': { args: ['{slow}'], prints: /^(?<slow_file>file_\w+)\n$/, finds: ['slow_file'] },
  'batches create later': {
    args: ['{slow_file}', '--not-before', '+2h'],
    prints: /^(?<later>batch_\w+)\n$/,
    finds: ['later'],
  },
  'batches pause': { args: ['{later}'], prints: /^id +{later}\n(.*\n)*paused_at +\d{4}-.*\n/ },
  'batches resume': { args: ['{later}'], prints: /^id +{later}\n(.*\n)*start_after +\d{4}-.*\n/ },
  'batches cancel': {
    args: ['{later}'],
    prints: /^id +{later}\n(.*\n)*status +(cancelling|cancelled|contemplating)\n/,
  },
  ask: { args: ['--model', 'sim-1', 'Why?'], prints: /^\S.*\n$/ },
  gather: { args: ['--', 'true'], prints: /^$/, tells: /0 calls: 0 answered, 0 failed/ },
  prepare: {
    by: 'files',
    args: ['{table}', ...TABLE, '-o', '{folder}/t.jsonl'],
    prints: /^$/,
    tells: /2 lines/,
  },
  'next-round': {
    by: 'files',
    args: ['{folder}/r.out', '--input', '{input}', '--tools', '{tools}', '-o', '{folder}/next.jsonl'],
    prints: /^$/,
    tells: /0 /,
  },
  'models list': { prints: /^ID .*\nsim-1 / },
  'models get': { args: ['sim-1'], prints: /^id +sim-1\n/ },
  'models pause': { args: ['sim-1'], prints: /sim-1/ },
  'models resume': { args: ['sim-1'], prints: /sim-1/ },
  'limits create': {
    args: ['--entity', 'user:1', '--usd', '5'],
    prints: /^(?<limit>lim_\w+)\n$/,
    finds: ['limit'],
  },
  'limits list': { prints: /^ID .*\n{limit} / },
  'limits get': { args: ['{limit}'], prints: /^id +{limit}\n(.*\n)*amount +5\n/ },
  'limits set': { args: ['{limit}', '--amount', '7'], prints: /^id +{limit}\n(.*\n)*amount +7\n/ },
  'limits delete': { args: ['{limit}'], prints: /^$/, tells: /{limit} is deleted/ },
  usage: { prints: /\$/ },
  apply: { args: ['-f', '{folder}/desired.yaml', '--dry-run'], prints: /^$/, tells: /Nothing differs/ },
  'audit export': { args: ['-o', '{folder}/audit.ndjson'], prints: /^$/, tells: /records? added to/ },
  status: { prints: /^Offpeak .*Unfinished batches: .*\n(.*\n)*MODEL +SERVER / },
  quotas: { prints: /^QUOTA.*\n(.*\n)*open_batches / },
  'webhooks create': { args: ['http://127.0.0.1:9/hook'], prints: /(?<webhook>wh_\w+)/, finds: ['webhook'] },
  'webhooks list': { prints: /\n{webhook} / },
  'webhooks get': { args: ['{webhook}'], prints: /^id +{webhook}\n/ },
  'webhooks disable': { args: ['{webhook}'], prints: /^id +{webhook}\n(.*\n)*enabled +false\n/ },
  'webhooks enable': { args: ['{webhook}'], prints: /^id +{webhook}\n(.*\n)*enabled +true\n/ },
  'webhooks rotate': { args: ['{webhook}'], prints: /whsec_/ },
  'webhooks test': { args: ['{webhook}'], prints: /^$/, tells: /evt_\w+ is sent/ },
  'webhooks deliveries': { args: ['{webhook}'], prints: /^EVENT .*\nevt_\w+ +webhook\.test / },
  'webhooks replay': { args: ['{webhook}'], prints: /^$/, tells: /0 events will be sent again/ },
  'webhooks delete': { args: ['{webhook}'], prints: /^$/, tells: /{webhook} is deleted/ },
  'events list': { prints: /^ID .*\n(?<event>evt_\w+) /, finds: ['event'] },
  'events get': { args: ['{event}'], prints: /^id +{event}\n/ },
  'files delete': { args: ['{slow_file}'], prints: /^$/, tells: /{slow_file} is deleted/ },
  console: { args: ['--no-open'], prints: /^http:\/\/127\.0\.0\.1:\d+\/console\S*\n$/ },

  'config check': { by: 'files', args: ['{folder}/quick.yaml'], prints: /quick\.yaml/ },
  'config show': { by: 'files', args: ['--config', '{folder}/quick.yaml'], prints: /^[\s\S]*id: sim-1/ },
  'config schema': { by: 'files', prints: /"\$schema"/ },
  plan: {
    by: 'files',
    args: ['--lines-per-day', '1000000', '--latency', '2', '--tokens', '500'],
    prints: /\d/,
  },
  completion: { by: 'files', args: ['bash'], prints: /batches/ },
  'keys create': {
    args: ['--project', 'one'],
    by: 'stores',
    prints: /^opk_[\w-]+\n$/,
    tells: /(?<key>key_\w+), project "one"/,
    finds: ['key'],
  },
  'keys list': { by: 'stores', prints: /^ID .*\n{key} +one +payg / },
  'keys revoke': { args: ['{key}'], by: 'stores', prints: /^$/, tells: /{key} is revoked/ },
  doctor: { by: 'stores', prints: /^Nothing is damaged: the database is sound/ },
  'doctor books': { by: 'stores', prints: /^The books balance: 2 projects/ },
  'doctor remote': { by: 'stores', prints: /No upstream is a batch API/ },
  backup: { args: ['{folder}/saved'], by: 'stores', prints: /^Backed up: the database and 0 blobs/ },
  rekey: { by: 'stores', prints: /^The master key is now \w+: 0 of 0 keys rewrapped/ },
  'migrate-data': {
    by: 'files',
    args: ['--from', '{folder}/alone.yaml', '--to', '{folder}/moved.yaml'],
    prints: /^Moved and compared: 5 rows/,
  },
  reload: {
    by: 'files',
    args: ['--data', '{folder}/service'],
    prints: /^process \d+ has taken up the configuration\n$/,
  },
  serve: {
    args: ['--port', '0', '--data', '{folder}/served'],
    by: 'serves',
    prints: /^offpeak listening on http:/,
  },
  api: {
    args: ['--port', '0', '--data', '{folder}/served'],
    by: 'serves',
    prints: /^offpeak listening on http:/,
  },
  worker: { args: ['--data', '{folder}/served'], by: 'serves', prints: /^offpeak worker ready$/ },
  sim: { args: ['--port', '0'], by: 'serves', prints: /http:/ },
}

/** How another version may answer. */
type Version = 'the same' | 'newer' | 'older'

/** Neither fields of objects nor names of them. */
const MAPS = ['metadata', 'quotas', 'body', 'response']
const LATER = [
  ...[
    'name',
    'not_run',
    'region',
    'model',
    'usage',
    'progress',
    'waiting_reason',
    'created_at',
    'first_id',
    'last_id',
  ],
  ...[
    'line_count',
    'pricing',
    'endpoints',
    'retryable',
    'unpriced_models',
    'has_more',
    'updated_at',
    'completion_windows',
  ],
]

function rewritten(value: unknown, version: Version): unknown {
  if (Array.isArray(value)) return value.map((one) => rewritten(one, version))
  if (!isRecord(value)) return value
  const fields = Object.entries(value)
    .filter(([name]) => version === 'newer' || !LATER.includes(name))
    .map(([name, one]) => [name, MAPS.includes(name) ? one : rewritten(one, version)])
  const other = Object.fromEntries(fields)
  if (version === 'older') return other
  const { object, status, waiting_reason, type } = other
  if (object === 'batch' && BATCH_STATUSES.some((one) => one === status && !isTerminal(one)))
    other.status = 'contemplating'
  if (object === 'file' && status === 'pending') other.status = 'scanning'
  if (isRecord(waiting_reason))
    Object.assign(waiting_reason, { code: 'solar_eclipse', text: { key: 'x', values: {} } })
  if (object === 'event' && typeof type === 'string') other.type = 'batch.polished'
  return { ...other, added_later: { of: ['any', 'kind'] } }
}

describe('every command', { timeout: 300_000 }, () => {
  let shell: Shell
  let access: Record<string, string>
  let proxy: UnreliableProxy
  const names = new Map<string, string>()

  before(async () => {
    shell = await Shell.make()
    await writeFile(
      shell.at('walk.yaml'),
      'models: [{id: sim-1, upstreams: [{type: sim}]}]\nlog: {level: warn}\nwebhooks: {allow_private_networks: true}\n',
    )
    const service = await shell.start('serve', '--config', 'walk.yaml', '--data', 'service', '--port', '0')
    access = await shell.access(service, 'service')
    for (const name of ['alone', 'moved'])
      await writeFile(shell.at(`${name}.yaml`), `data_dir: ${shell.at(name)}\n`)
    proxy = await unreliableProxy(access.OFFPEAK_BASE_URL!)
    await (await shell.start('serve', '--config', 'walk.yaml', '--data', 'alone', '--port', '0')).end(
      'SIGTERM',
    )
    names.set('folder', shell.at(''))
    names.set('input', await shell.input('in.jsonl', chatLine('one'), chatLine('two')))
    names.set('slow', await shell.input('slow.jsonl', chatLine('slow')))
    names.set('mixed', await shell.input('mixed.jsonl', chatLine('good'), chatLine('bad', 'no-such-model')))
    names.set('table', shell.at('table.csv'))
    await writeFile(shell.at('table.csv'), 'text\nfine\nawful\n')
    await writeFile(shell.at('desired.yaml'), 'projects: [{name: default}]\n')
    names.set('tools', await shell.input('tools.jsonl'))
  })

  after(async () => {
    await proxy.close()
    await shell[Symbol.asyncDispose]()
  })

  const named = (text: string): string => text.replace(/\{(\w+)\}/g, (all, name) => names.get(name) ?? all)

  test('has a row that says what it prints', () => {
    const without = commandNames().filter((name) => !Object.keys(ROWS).some((row) => commandOf(row) === name))
    assert.deepEqual(without, [])
  })

  for (const version of ['the same', 'newer', 'older'] as const)
    test(`does what it says against a service of a version that is ${version}`, async (t) => {
      proxy.rewrite = version === 'the same' ? null : (body) => rewritten(body, version)
      const env = { ...access, OFFPEAK_BASE_URL: proxy.url }
      for (const [row, { args = [], prints, tells, code = 0, finds = [], by }] of Object.entries(ROWS))
        await t.test(row, async () => {
          if (by !== undefined && version !== 'the same') return
          const words = [...commandOf(row).split(' '), ...args.map(named)]
          if (by === 'serves') {
            const running = await shell.start(...words, ...(row === 'sim' ? [] : ['--config', 'walk.yaml']))
            assert.match(running.ready, prints)
            assert.equal((await running.end('SIGTERM')).code, 0)
            return
          }
          if (by === 'stores') words.push('--config', shell.at('walk.yaml'), '--data', shell.at('alone'))
          const done = await shell.offpeak(words, by === undefined ? env : {})
          assert.equal(done.code, code, done.err)
          assert.doesNotMatch(done.out + done.err, /undefined|NaN|\[object/)
          const expected = [
            [done.out, prints],
            [done.err, tells],
          ] as const
          for (const [text, wanted] of expected) {
            if (wanted === undefined) continue
            const pattern = new RegExp(named(wanted.source))
            if (version !== 'older' || pattern.exec(text)) assert.match(text, pattern)
            for (const name of finds) {
              const found = pattern.exec(text)?.groups?.[name]
              if (found !== undefined) names.set(name, found)
            }
          }
        })
    })
})

/** Of a row, which may have more words behind the command. */
function commandOf(row: string): string {
  return commandNames().findLast((name) => row === name || row.startsWith(`${name} `)) ?? row
}

function commandNames(): string[] {
  const program = new Command()
  const shell: Pick<ProgramShell, 'terminal'> = { terminal: process }
  for (const add of COMMANDS) add(program, shell as ProgramShell)
  const walk = (command: Command, path: string): string[] => [
    ...(typeof Reflect.get(command, '_actionHandler') === 'function' ? [path] : []),
    ...command.commands.flatMap((one) => walk(one, `${path} ${one.name()}`.trim())),
  ]
  return walk(program, '')
}
