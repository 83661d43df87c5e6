// Commands that open the stores themselves. backup: copies database and blobs while the service runs. rekey: replaces
// the master key, with the service stopped. migrate-data: copies everything to another database and blob store, with the
// service stopped. doctor: examines the stores, whether a service runs on them or not.
import { existsSync } from 'node:fs'
import type { Command } from 'commander'
import type { Finding } from '../../admin/examine.ts'
import type { Config } from '../../config/config.ts'
import { usd } from '../../domain/money.ts'
import type { ConfigFlags, Doctor, JsonFlags, Shell } from '../shell.ts'
import { EXIT_FAILED, Failure } from '../terminal/failure.ts'
import { examples, jsonCommand } from '../terminal/option-values.ts'
import {
  counted,
  humanBytes,
  humanCount,
  humanUsd,
  paintFor,
  printJson,
  writeLine,
} from '../terminal/terminal.ts'

export function addBackup(program: Command, shell: Shell): void {
  const description = 'copy database and blobs into a folder while the service runs (SQLite)'
  examples(
    jsonCommand(program, 'backup', description)
      .argument('<dir>', 'created if it does not exist; an existing backup is brought up to date')
      .action((dir: string, flags: JsonFlags) => backUp(shell, dir, flags)),
    'offpeak backup /backups/offpeak',
  ).addHelpText(
    'after',
    '\nThe backup does not contain the master key, and cannot be read without it: keep the key elsewhere.',
  )
}

async function backUp(shell: Shell, dir: string, flags: JsonFlags): Promise<void> {
  const { stdout } = shell.terminal
  const config = await shell.launch.loadConfig(flags)
  const { backup } = await shell.launch.adminCommands()
  const done = await backup(config, dir)
  if (done.missing.length > 0) shell.exit(EXIT_FAILED)
  if (flags.json) return printJson(stdout, done)
  const { blobs, copied, bytes_copied, missing } = done
  for (const key of missing)
    writeLine(
      stdout,
      `Blob ${key} is missing from the service; run "offpeak doctor" to see which batch it belongs to.`,
    )
  writeLine(
    stdout,
    `Backed up: the database and ${counted(blobs, 'blob')}, ${copied} of them new (${humanBytes(bytes_copied)}). The master key is not included.`,
  )
}

interface RekeyFlags extends JsonFlags {
  toFile?: string
  toEnv?: string
  toConfig?: string
}

export function addRekey(program: Command, shell: Shell): void {
  examples(
    jsonCommand(program, 'rekey', 'replace the master key; stop the service first')
      .option('--to-file <file>', 'file with the new key (default: a new key is generated)')
      .option('--to-env <name>', 'variable with the new key')
      .option('--to-config <file>', 'configuration that says where the new key is to be (master_key)')
      .action((flags: RekeyFlags) => rekeyStores(shell, flags)),
    'offpeak rekey',
    'NEW_KEY=$(openssl rand -base64 32) offpeak rekey --to-env NEW_KEY',
  ).addHelpText('after', '\nTo resume an interrupted run, run the command again.')
}

async function rekeyStores(shell: Shell, flags: RekeyFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const { toFile, toEnv } = flags
  if ([toFile, toEnv, flags.toConfig].filter((to) => to !== undefined).length > 1)
    throw new Failure('give one of --to-file, --to-env and --to-config')
  let reported = 0
  const config = await shell.launch.loadConfig(flags)
  const toConfig = flags.toConfig && (await shell.launch.loadConfig({ ...flags, config: flags.toConfig }))
  const { rekey } = await shell.launch.adminCommands()
  const report = await rekey(config, {
    toFile,
    toEnv,
    toConfig: toConfig || undefined,
    tell(done) {
      if (done < reported + REPORT_EVERY) return
      reported = done
      writeLine(stderr, `${counted(done, 'key')} rewrapped`)
    },
  })
  if (flags.json) return printJson(stdout, report)
  const { key_id, path, rewrapped, total, opened } = report
  writeLine(
    stdout,
    `The master key is now ${key_id}: ${humanCount(rewrapped)} of ${counted(total, 'key')} rewrapped, ${counted(opened, 'blob')} decrypted with it.`,
  )
  if (flags.toConfig !== undefined)
    writeLine(stdout, `Every process needs the master_key of ${flags.toConfig} now.`)
  else if (path !== null)
    writeLine(stdout, `The new key is in ${path}. The old key is kept in ${path}.old, for earlier backups.`)
  else writeLine(stdout, 'Set OFFPEAK_MASTER_KEY to the new key for every process.')
}

const REPORT_EVERY = 100_000

interface MoveFlags extends JsonFlags {
  from: string
  to?: string
  release?: boolean
}

export function addMigrateData(program: Command, shell: Shell): void {
  const description = 'move everything to another database and blob store; stop the service first'
  examples(
    jsonCommand(program, 'migrate-data', description)
      .requiredOption('--from <place>', 'a configuration file, or DATABASE+BLOBS')
      .option('--to <place>', 'the target, in the same form; both of its stores must be empty')
      .option('--release', 'allow services to use the stores of --from again after a move')
      .action((flags: MoveFlags) => moveData(shell, flags)),
    'offpeak migrate-data --from sqlite+disk --to postgres+s3',
    "offpeak migrate-data --from sqlite+disk --to 'postgres://offpeak@db/offpeak+s3://offpeak/prod?region=eu-west-1'",
    'offpeak migrate-data --from offpeak.yaml --to new.yaml',
  ).addHelpText('after', `\n${PLACES}`)
}

const PLACES = `DATABASE is "sqlite", "sqlite:PATH" or a PostgreSQL URL, BLOBS is "disk", "disk:PATH" or the URL of a bucket;
"postgres" and "s3" alone stand for the stores that the configuration names. To resume an interrupted move, run
the command again.`

async function moveData(shell: Shell, flags: MoveFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const from = await configOfSide(shell, flags, '--from', flags.from)
  const { migrateData, releaseMoved } = await shell.launch.adminCommands()
  if (flags.release === true) {
    if (flags.to !== undefined) throw new Failure('give --to or --release, not both')
    await releaseMoved(from)
    return writeLine(
      stderr,
      'Services can use these stores again. Changes from now on are not in the stores they were moved to.',
    )
  }
  if (flags.to === undefined)
    throw new Failure('the target is missing; give --to CONFIG or --to DATABASE+BLOBS')
  const to = await configOfSide(shell, flags, '--to', flags.to)
  const moved = await migrateData(from, to, (text) => writeLine(stderr, text))
  if (flags.json) return printJson(stdout, moved)
  const { rows, blobs, bytes, opened, missing } = moved
  for (const key of missing) writeLine(stdout, `Blob ${key} was not moved: it is missing from the source.`)
  writeLine(
    stdout,
    `Moved and compared: ${counted(rows, 'row')}, ${counted(blobs, 'blob')} (${humanBytes(bytes)}), ${opened} decrypted at the target.`,
  )
  writeLine(
    stdout,
    'Start the service with the new configuration. Services refuse to start on the old stores.',
  )
}

/** The configuration of the source or the target of `migrate-data`. */
async function configOfSide(shell: Shell, flags: ConfigFlags, option: string, text: string): Promise<Config> {
  const { config, data } = flags
  if (existsSync(text)) return await shell.launch.loadConfig({ config: text, data })
  const match = /^(.+)\+((?:disk|s3)(?::.*)?)$/.exec(text)
  if (match === null)
    throw new Failure(
      `${option}: "${text}" is neither a configuration file that exists nor DATABASE+BLOBS, such as sqlite+disk`,
    )
  const [, database = '', blobs = ''] = match
  // The text is a kind of database whose address is in the configuration.
  const isConfigured = /^[a-z]+$/.test(database) && database !== 'sqlite'
  const found = await shell.launch.loadConfig({
    config,
    data,
    database: isConfigured ? undefined : database,
    blobs: blobs === 's3' ? undefined : blobs,
  })
  if (isConfigured && found.database.kind !== database)
    throw new Failure(
      `${option}: the configuration names no database of the kind ${database} (database: ${database}://…)`,
    )
  if (blobs === 's3' && found.blobs.kind !== 's3')
    throw new Failure(`${option}: the configuration names no bucket (blobs: s3://…)`)
  return found
}

interface ExamineFlags extends JsonFlags {
  quick?: boolean
}

interface BooksFlags extends JsonFlags {
  project?: string
}

export function addDoctor(program: Command, shell: Shell): void {
  const doctor = jsonCommand(program, 'doctor', 'check the database and every blob, and report damage')
  examples(
    doctor
      .option('--quick', 'check that every blob exists, but read only a few')
      .action((flags: ExamineFlags) => examine(shell, flags)),
    'offpeak doctor',
    'offpeak doctor --quick --json',
    'offpeak doctor books',
  ).addHelpText('after', '\nExit code: 0 no damage, 1 damage.')

  const remote =
    'ask each batch API whether it answers and compare its batches; read the metrics of servers with live traffic and the keys of tokens'
  // Commander assigns an option that the parent command also has to the parent.
  jsonCommand(doctor, 'remote', remote).action((_: BooksFlags, command: Command) =>
    compareRemote(shell, command.optsWithGlobals<BooksFlags>()),
  )
  jsonCommand(doctor, 'books', 'compare result files, batches, ledger and usage to the nano-dollar')
    .option('--project <name>', 'only this project')
    .action((_: BooksFlags, command: Command) => reconcile(shell, command.optsWithGlobals<BooksFlags>()))
}

async function compareRemote(shell: Shell, flags: BooksFlags): Promise<void> {
  const { stdout } = shell.terminal
  await using doctor = await doctorOf(shell, flags)
  const found = await doctor.remote()
  const {
    batch_apis: batchApis,
    live_metrics: liveMetrics,
    key_sets: keySets,
    upstreams,
    differences,
  } = found
  const isReady = [...batchApis, ...liveMetrics, ...keySets].every(({ problem }) => problem === null)
  if (!isReady) shell.exit(EXIT_FAILED)
  if (flags.json) return printJson(stdout, { ok: isReady, ...found })
  for (const { upstream, base_url, problem } of batchApis)
    writeLine(stdout, `${upstream} (${base_url}): ${problem ?? 'it answers and takes the key'}.`)
  for (const { upstream, metrics_url, problem } of liveMetrics)
    writeLine(
      stdout,
      `${upstream} (metrics at ${metrics_url}): ${problem ?? 'they say what the server does'}.`,
    )
  for (const { issuer, keys_at, problem } of keySets)
    writeLine(stdout, `tokens of ${issuer} (keys at ${keys_at}): ${problem ?? 'its keys can be read'}.`)
  for (const { remote_batch, upstream, batch_id, problem } of differences)
    writeLine(stdout, `${upstream} ${remote_batch} (of ${batch_id}): ${problem}.`)
  for (const one of upstreams) {
    const there = one.remote_cost_nanos === null ? '' : ` for ${humanUsd(usd(one.remote_cost_nanos))}`
    writeLine(
      stdout,
      `${one.upstream}: ${counted(one.lines, 'line')} in ${counted(one.batches, 'remote batch', 'remote batches')}, ${one.unfinished} unfinished, ${one.given_up} given up; ` +
        `${counted(one.answered, 'line')} recorded here for ${humanUsd(usd(one.cost_nanos))}; by its own account ${counted(one.remote_answered, 'line')} answered${there}.`,
    )
  }
  if (batchApis.length === 0) writeLine(stdout, 'No upstream is a batch API.')
  if (upstreams.length === 0) writeLine(stdout, 'No line was sent to a batch API.')
}

async function examine(shell: Shell, flags: ExamineFlags): Promise<void> {
  const { stdout } = shell.terminal
  const findings: Finding[] = []
  const paint = paintFor(stdout)
  await using doctor = await doctorOf(shell, flags)
  const examined = await doctor.examine({
    quick: flags.quick === true,
    tell(finding) {
      findings.push(finding)
      if (flags.json) return
      const colour = finding.level === 'note' ? 'yellow' : 'red'
      writeLine(stdout, `${paint(colour, finding.level.padEnd(7))}  ${sentence(finding)}`)
      if (finding.affects.length > 0)
        writeLine(stdout, `         lost with it: ${finding.affects.join(', ')}`)
      writeLine(stdout, `         ${finding.advice}`)
    },
  })
  const damaged = findings.filter(({ level }) => level === 'damage').length
  const isKeySet = findings.every(({ level }) => level !== 'not set')
  const ok = damaged === 0 && isKeySet
  if (!ok) shell.exit(EXIT_FAILED)
  if (flags.json) return printJson(stdout, { ok, ...examined, findings })
  const { blobs, opened, bytes_opened } = examined
  const extent = `${counted(blobs, 'blob')}, ${opened} opened (${humanBytes(bytes_opened)})`
  if (!isKeySet && damaged === 0)
    writeLine(stdout, `No damage was found, and without the master key blobs cannot be read; ${extent}.`)
  else if (damaged === 0) writeLine(stdout, `Nothing is damaged: the database is sound; ${extent}.`)
  else writeLine(stdout, `${counted(damaged, 'finding')} of damage; ${extent}.`)
}

function sentence({ about, blob, problem }: Finding): string {
  const subject = {
    database: 'the database: ',
    master_key: 'the master key: ',
    blobs: 'the blobs: ',
    blob: `blob ${blob}: `,
    orphans: '',
  }[about]
  return `${subject}${problem}.`
}

async function reconcile(shell: Shell, flags: BooksFlags): Promise<void> {
  const { stdout } = shell.terminal
  await using doctor = await doctorOf(shell, flags)
  const found = await doctor.books(flags.project)
  const { projects, batches, lines, cost_nanos, mismatches } = found
  if (mismatches.length > 0) shell.exit(EXIT_FAILED)
  if (flags.json) return printJson(stdout, { ok: mismatches.length === 0, ...found })
  for (const { project_id, batch_id, problem } of mismatches)
    writeLine(stdout, `${batch_id ?? project_id}  ${problem}`)
  const extent = `${counted(projects, 'project')}, ${counted(batches, 'batch', 'batches')}, ${counted(lines, 'result line')} read`
  const sum = humanUsd(usd(cost_nanos))
  if (mismatches.length === 0) writeLine(stdout, `The books balance: ${extent}, ${sum} in all.`)
  else writeLine(stdout, `The books do not balance: ${counted(mismatches.length, 'difference')}; ${extent}.`)
}

async function doctorOf(shell: Shell, flags: ConfigFlags): Promise<Doctor> {
  return await shell.launch.doctor(await shell.launch.loadConfig(flags))
}
