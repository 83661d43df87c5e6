// files: list, upload, download and delete files.
import type { Command } from 'commander'
import { FILE_PURPOSES } from '../../domain/file.ts'
import { DeletedFile, FileObject } from '../../wire/file.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import { download } from '../client/download.ts'
import { uploadInput } from '../client/upload.ts'
import { watchFile } from '../client/watch-batch.ts'
import type { Shell } from '../shell.ts'
import { Interrupted } from '../terminal/failure.ts'
import { counted, humanBytes, humanCount, humanTime } from '../terminal/format.ts'
import { examples, wholeNumber } from '../terminal/option-values.ts'
import { uploadLine } from '../terminal/progress-line.ts'
import { progressView } from '../terminal/progress-view.ts'
import { printFields, printJson, printTable } from '../terminal/table.ts'
import { writeData, writeLine } from '../terminal/terminal.ts'

interface ListFlags extends ApiFlags {
  limit: number
  purpose?: string
}

export function addFiles(program: Command, shell: Shell): void {
  const files = program.command('files').description('list, upload, download and delete files')
  const { stdout } = shell.terminal

  apiCommand(files, 'list', 'show files, newest first')
    .option('--limit <number>', 'how many', wholeNumber(1), 20)
    .option('--purpose <purpose>', `only ${FILE_PURPOSES.join(' or ')}`)
    .action((flags: ListFlags) => listFiles(shell, flags))

  apiCommand(files, 'get', 'show a file')
    .argument('<id>', 'file_…')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) => {
        const file = await client.get(FileObject, `/v1/files/${encodeURIComponent(id)}`)
        if (flags.json) printJson(stdout, file)
        else printFields(stdout, file)
      }),
    )

  examples(
    apiCommand(files, 'upload', 'upload a JSONL file and wait until it is validated')
      .argument('<path>', 'JSONL file, one request per line')
      .action((path: string, flags: ApiFlags) => uploadFile(shell, path, flags)),
    'offpeak files upload input.jsonl',
    'FILE=$(offpeak files upload input.jsonl)',
  )

  apiCommand(files, 'content', 'print the content of a file')
    .argument('<id>', 'file_…')
    .option('-o, --output <file>', 'write the content to this file instead')
    .action((id: string, flags: ApiFlags & { output?: string }) => printContent(shell, id, flags))

  apiCommand(files, 'delete', 'delete a file and its content')
    .argument('<id>', 'file_…')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) => {
        const deleted = await client.delete(DeletedFile, `/v1/files/${encodeURIComponent(id)}`)
        if (flags.json) printJson(stdout, deleted)
        else writeLine(shell.terminal.stderr, `${deleted.id} is deleted.`)
      }),
    )
}

async function listFiles(shell: Shell, flags: ListFlags): Promise<void> {
  const { stdout } = shell.terminal
  await withApi(shell, flags, async ({ client }) => {
    const found = await client.list(FileObject, '/v1/files', flags.limit, { purpose: flags.purpose })
    if (flags.json) return printJson(stdout, found)
    printTable(
      stdout,
      ['ID', 'PURPOSE', 'STATUS', 'LINES', 'SIZE', 'CREATED', 'NAME'],
      found.map((file) => [
        file.id,
        file.purpose,
        file.status,
        humanCount(file.line_count),
        humanBytes(file.bytes),
        humanTime(file.created),
        file.filename,
      ]),
    )
  })
}

/** Prints the ID to stdout, for scripts. */
async function uploadFile(shell: Shell, path: string, flags: ApiFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const view = progressView(stderr, shell.clock)
  await withApi(shell, flags, async ({ client, pace }) => {
    try {
      const { file } = await uploadInput(client, path, (sent, total) =>
        view.show('uploading', (columns, paint) => uploadLine(sent, total, columns, paint)),
      )
      const signal = shell.interruption()
      const checked = await watchFile(client, file.id, { view, pace, clock: shell.clock, signal })
      view.stop()
      if (flags.json) return printJson(stdout, checked)
      writeLine(stdout, checked.id)
      writeLine(stderr, `${counted(checked.line_count, 'line')}, ${humanBytes(checked.bytes)}`)
    } finally {
      view.stop()
    }
  })
}

async function printContent(shell: Shell, id: string, flags: ApiFlags & { output?: string }): Promise<void> {
  const signal = shell.interruption()
  const { output } = flags
  await withApi(shell, flags, async ({ client }) => {
    if (output !== undefined) {
      const bytes = await download(client, encodeURIComponent(id), output, signal)
      return writeLine(shell.terminal.stderr, `${output}: ${humanBytes(bytes)}`)
    }
    const response = await client.stream(`/v1/files/${encodeURIComponent(id)}/content`)
    try {
      await writeData(shell.terminal.stdout, response.body)
    } catch (error) {
      if (signal.aborted) throw new Interrupted()
      throw error
    }
  })
}
