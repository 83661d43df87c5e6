// audit export: appends the audit log to a file of JSONL, behind the last record that the file has. A run that was
// killed is run again: what it had written of a record is cut off, and the file has each record once.
import { type FileHandle, open } from 'node:fs/promises'
import type { Command } from 'commander'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import { withApi } from '../client/connect.ts'
import { checkOutput } from '../output-file.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { examples, jsonCommand } from '../terminal/option-values.ts'
import { counted, writeLine } from '../terminal/terminal.ts'

interface ExportFlags extends JsonFlags {
  output: string
  after?: string
  project?: string
}

export function addAudit(program: Command, shell: Shell): void {
  const audit = program.command('audit').description('export the audit log')
  examples(
    jsonCommand(audit, 'export', 'append the records of calls and lines to a file, in order')
      .requiredOption('-o, --output <file>', 'the file, .ndjson or .jsonl; goes on behind its last record')
      .option('--after <cursor>', 'begin behind this record: the `cursor` of the last one of another file')
      .option('--project <id>', 'records of another project, or of all; for operators')
      .action((flags: ExportFlags) => exportAudit(shell, flags)),
    'offpeak audit export -o audit.ndjson',
    'offpeak audit export --project all --after 1795780000000-req_01kb1xq4 -o audit-2026-12.ndjson',
  )
}

async function exportAudit(shell: Shell, flags: ExportFlags): Promise<void> {
  const { stderr } = shell.terminal
  const { output, project } = flags
  await checkOutput(output, {}, 'jsonl')
  const file = await open(output, 'a+')
  try {
    const last = await lastRecord(file, output)
    if (last && flags.after !== undefined)
      throw new Failure(`${output} has records, and goes on behind its last one: leave --after out`)
    if (last) await file.truncate(last.end)
    let after = last?.cursor ?? flags.after
    let records = 0
    await withApi(shell, flags, async ({ client }) => {
      for (let hasMore = true; hasMore; ) {
        const page = await client.page('/v1/audit', { after, project_id: project })
        // The next page is requested once this one is on the disk.
        await file.appendFile(page.bytes)
        await file.datasync()
        records += page.bytes.toString('latin1').split('\n').length - 1
        after = page.next
        hasMore = page.hasMore
      }
    })
    writeLine(
      stderr,
      `${counted(records, 'record')} added to ${output}. To go on in another file: --after ${after}`,
    )
  } finally {
    await file.close()
  }
}

const TAIL_BYTES = 64 * 1024

/** The end of the file's last complete record, and its cursor; undefined where there is none. */
async function lastRecord(
  file: FileHandle,
  path: string,
): Promise<{ end: number; cursor: string } | undefined> {
  const { size } = await file.stat()
  for (let bytes = TAIL_BYTES; size > 0; bytes *= 2) {
    const start = Math.max(0, size - bytes)
    const tail = Buffer.alloc(size - start)
    await file.read(tail, 0, tail.length, start)
    const end = tail.lastIndexOf('\n')
    const before = end <= 0 ? -1 : tail.lastIndexOf('\n', end - 1)
    if (end === -1 && start === 0) return void (await file.truncate(0))
    if (end === -1 || (before === -1 && start > 0)) continue
    const record = parsedJson(tail.toString('utf8', before + 1, end))
    if (!isRecord(record) || typeof record.cursor !== 'string')
      throw new Failure(
        `${path} is no export of the audit log: its last line has no "cursor"; name another file`,
      )
    return { end: start + end + 1, cursor: record.cursor }
  }
  return undefined
}
