// audit export: appends the audit log to a file of JSONL, behind the last record that the file has. A run that was
// killed is run again: what it had written of a record is cut off, and the file has each record once.
import { constants, type FileHandle, open } from 'node:fs/promises'
import type { Command } from 'commander'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import { withApi } from '../client/connect.ts'
import { checkOutput } from '../output-file.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { Failure, writing } from '../terminal/failure.ts'
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
  const file = await open(output, constants.O_RDWR | constants.O_CREAT)
  try {
    let { size } = await file.stat()
    const last = await lastRecord(file, size, output)
    if (last.cursor !== undefined && flags.after !== undefined)
      throw new Failure(`${output} has records, and goes on behind its last one: leave --after out`)
    let { end, cursor: after = flags.after } = last
    // Two exports from the same record write the same bytes to the same place, until one of them is ahead.
    const append = async (bytes: Buffer): Promise<void> => {
      if ((await file.stat()).size !== size)
        throw new Failure(`another program, such as a second export, writes to ${output}; wait for its end`)
      for (let at = 0; at < bytes.length; )
        at += (await file.write(bytes, at, bytes.length - at, end + at)).bytesWritten
      end += bytes.length
      if (size > end) await file.truncate(end)
      size = end
      await file.datasync()
    }
    let records = 0
    await withApi(shell, flags, async ({ client }) => {
      for (let hasMore = true; hasMore; ) {
        const page = await client.page('/v1/audit', { after, project_id: project })
        // The next page is requested once this one is on the disk.
        await writing(output, append(page.bytes))
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

/** The beginning of each record. */
const BEGINNING = '{"id":"req_'

/** The end of the file's last complete record, and its cursor; the beginning of the file where there is none. */
async function lastRecord(
  file: FileHandle,
  size: number,
  path: string,
): Promise<{ end: number; cursor?: string }> {
  for (let bytes = TAIL_BYTES; size > 0; bytes *= 2) {
    const start = Math.max(0, size - bytes)
    const tail = Buffer.alloc(size - start)
    await file.read(tail, 0, tail.length, start)
    const end = tail.lastIndexOf('\n')
    const before = end <= 0 ? -1 : tail.lastIndexOf('\n', end - 1)
    const head = tail.toString('utf8', 0, BEGINNING.length)
    if (end === -1 && start === 0 && BEGINNING.startsWith(head)) break
    if (start > 0 && before === -1) continue
    const record = parsedJson(tail.toString('utf8', before + 1, Math.max(0, end)))
    if (!isRecord(record) || typeof record.cursor !== 'string')
      throw new Failure(
        `${path} is no export of the audit log: its last line has no "cursor"; name another file`,
      )
    return { end: start + end + 1, cursor: record.cursor }
  }
  return { end: 0 }
}
