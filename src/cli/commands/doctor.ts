// doctor: examines the stores directly, whether a service runs on them or not.

import type { Command } from 'commander'
import type { Finding } from '../../admin/examine.ts'
import { usd } from '../../domain/money.ts'
import type { ConfigFlags, Doctor } from '../launch.ts'
import type { Shell } from '../shell.ts'
import { EXIT_FAILED } from '../terminal/failure.ts'
import { counted, humanBytes, humanCount, humanUsd } from '../terminal/format.ts'
import { examples, withConfig, withJson } from '../terminal/option-values.ts'
import { printJson } from '../terminal/table.ts'
import { paintFor, writeLine } from '../terminal/terminal.ts'

interface ExamineFlags extends ConfigFlags {
  quick?: boolean
  json?: boolean
}

interface BooksFlags extends ConfigFlags {
  project?: string
  json?: boolean
}

export function addDoctor(program: Command, shell: Shell): void {
  const doctor = program
    .command('doctor')
    .description('check the database and every blob, and report damage')
    .option('--quick', 'check that every blob exists, but read only a few')
  examples(
    withConfig(withJson(doctor)).action((flags: ExamineFlags) => examine(shell, flags)),
    'offpeak doctor',
    'offpeak doctor --quick --json',
    'offpeak doctor books',
  ).addHelpText('after', '\nExit code: 0 no damage, 1 damage.')

  const books = doctor
    .command('books')
    .description('compare result files, batches, ledger and usage to the nano-dollar')
    .option('--project <name>', 'only this project')
  const remote = doctor
    .command('remote')
    .description('ask each batch API whether it answers, and compare its batches with what it says of them')
  withConfig(withJson(remote)).action((_: BooksFlags, command: Command) =>
    compareRemote(shell, command.optsWithGlobals<BooksFlags>()),
  )
  withConfig(withJson(books)).action((_: BooksFlags, command: Command) =>
    // Commander assigns options that the parent command has as well to the parent.
    reconcile(shell, command.optsWithGlobals<BooksFlags>()),
  )
}

async function compareRemote(shell: Shell, flags: BooksFlags): Promise<void> {
  const { stdout } = shell.terminal
  const { upstreams, differences, batchApis } = await onStores(shell, flags, async (doctor) => ({
    ...(await doctor.remote()),
    batchApis: await doctor.batchApis(),
  }))
  const isReady = batchApis.every(({ problem }) => problem === null)
  if (!isReady) shell.exit(EXIT_FAILED)
  if (flags.json) return printJson(stdout, { ok: isReady, batch_apis: batchApis, upstreams, differences })
  for (const { upstream, base_url, problem } of batchApis)
    writeLine(stdout, `${upstream} (${base_url}): ${problem ?? 'it answers and takes the key'}.`)
  for (const { remote_batch, upstream, batch_id, problem } of differences)
    writeLine(stdout, `${upstream} ${remote_batch} (of ${batch_id}): ${problem}.`)
  for (const one of upstreams) {
    const there = one.remote_cost_nanos === null ? '' : ` for ${humanUsd(usd(one.remote_cost_nanos))}`
    writeLine(
      stdout,
      `${one.upstream}: ${counted(one.lines, 'line')} in ${one.batches === 1 ? '1 remote batch' : `${humanCount(one.batches)} remote batches`}, ${one.unfinished} unfinished, ${one.given_up} given up; ` +
        `${counted(one.answered, 'line')} recorded here for ${humanUsd(usd(one.cost_nanos))}; by its own account ${counted(one.remote_answered, 'line')} answered${there}.`,
    )
  }
  if (batchApis.length === 0) writeLine(stdout, 'No upstream of type openai-batch is configured.')
  if (upstreams.length === 0) writeLine(stdout, 'No line was sent to a batch API.')
}

async function examine(shell: Shell, flags: ExamineFlags): Promise<void> {
  const { stdout } = shell.terminal
  const findings: Finding[] = []
  const paint = paintFor(stdout)
  const examined = await onStores(shell, flags, (doctor) =>
    doctor.examine({
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
    }),
  )
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
    blob: `blob ${blob}: `,
    orphans: '',
  }[about]
  return `${subject}${problem}.`
}

async function reconcile(shell: Shell, flags: BooksFlags): Promise<void> {
  const { stdout } = shell.terminal
  const found = await onStores(shell, flags, (doctor) => doctor.books(flags.project))
  const { projects, batches, lines, cost_nanos, mismatches } = found
  if (mismatches.length > 0) shell.exit(EXIT_FAILED)
  if (flags.json) return printJson(stdout, { ok: mismatches.length === 0, ...found })
  for (const { project_id, batch_id, problem } of mismatches)
    writeLine(stdout, `${batch_id ?? project_id}  ${problem}`)
  const batchCount = batches === 1 ? '1 batch' : `${humanCount(batches)} batches`
  const extent = `${counted(projects, 'project')}, ${batchCount}, ${counted(lines, 'result line')} read`
  const sum = humanUsd(usd(cost_nanos))
  if (mismatches.length === 0) writeLine(stdout, `The books balance: ${extent}, ${sum} in all.`)
  else writeLine(stdout, `The books do not balance: ${counted(mismatches.length, 'difference')}; ${extent}.`)
}

async function onStores<T>(
  shell: Shell,
  flags: ConfigFlags,
  act: (doctor: Doctor) => Promise<T>,
): Promise<T> {
  const doctor = await shell.launch.doctor(await shell.launch.loadConfig(flags))
  try {
    return await act(doctor)
  } finally {
    await doctor.close()
  }
}
