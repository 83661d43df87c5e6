// files: list, upload, download and delete files.
import { stat } from 'node:fs/promises'
import { type Command, Option } from 'commander'
import { FILE_PURPOSES, UPLOAD_PURPOSES, type UploadPurpose } from '../../domain/file.ts'
import { formatOf } from '../../tables/table.ts'
import { FileObject } from '../../wire/file.ts'
import { withApi } from '../client/connect.ts'
import { contentOf } from '../client/download.ts'
import { addResource } from '../client/object-commands.ts'
import { uploadInput } from '../client/upload.ts'
import { watchFile } from '../client/watch-batch.ts'
import { writeWhole } from '../output-file.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { examples, jsonCommand } from '../terminal/option-values.ts'
import {
  counted,
  humanBytes,
  humanCount,
  humanTime,
  printJson,
  writeData,
  writeLine,
} from '../terminal/terminal.ts'

interface UploadFlags extends JsonFlags {
  purpose: UploadPurpose
}

export function addFiles(program: Command, shell: Shell): void {
  const files = program.command('files').description('list, upload, download and delete files')

  addResource(shell, files, {
    description: 'show files, newest first',
    kind: 'files',
    one: ['a file', 'file_…'],
    deletion: 'delete a file and its content',
    shape: FileObject,
    filters: { purpose: ['--purpose <purpose>', `only ${FILE_PURPOSES.join(' or ')}`] },
    columns: {
      ID: ({ id }) => id,
      PURPOSE: ({ purpose }) => purpose,
      STATUS: ({ status }) => status,
      LINES: ({ line_count }) => humanCount(line_count),
      SIZE: ({ bytes }) => humanBytes(bytes),
      CREATED: ({ created }) => humanTime(created),
      NAME: ({ filename }) => filename,
    },
  })

  examples(
    jsonCommand(files, 'upload', 'upload a JSONL file and wait until it is validated, or a table')
      .argument('<path>', 'JSONL file, one request per line; or a table')
      .addOption(
        new Option('--purpose <purpose>', 'table: rows, which a batch is to ask about')
          .choices(UPLOAD_PURPOSES)
          .default('batch'),
      )
      .action((path: string, flags: UploadFlags) => uploadFile(shell, path, flags)),
    'offpeak files upload input.jsonl',
    'FILE=$(offpeak files upload input.jsonl)',
    'offpeak files upload reviews.parquet --purpose table',
  )

  jsonCommand(files, 'content', 'print the content of a file')
    .argument('<id>', 'file_…')
    .option('-o, --output <file>', 'write the content to this file instead')
    .action((id: string, flags: JsonFlags & { output?: string }) => printContent(shell, id, flags))
}

/** Uploads a file and prints its ID to standard output, for scripts. */
async function uploadFile(shell: Shell, path: string, flags: UploadFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  if (flags.purpose === 'batch' && ![undefined, 'jsonl'].includes(formatOf(path)))
    throw new Failure(`${path} is a table, and no file of requests; add --purpose table`)
  await withApi(shell, flags, async ({ client, watch }) => {
    const { file } = await uploadInput(client, path, watch.view, flags.purpose)
    const checked = await watchFile(client, file.id, watch)
    watch.view.stop()
    if (flags.json) return printJson(stdout, checked)
    writeLine(stdout, checked.id)
    const lines = flags.purpose === 'batch' ? `${counted(checked.line_count, 'line')}, ` : ''
    writeLine(stderr, `${lines}${humanBytes(checked.bytes)}`)
  })
}

async function printContent(shell: Shell, id: string, flags: JsonFlags & { output?: string }): Promise<void> {
  const { output } = flags
  await withApi(shell, flags, async ({ client }) => {
    const content = contentOf(client, id)
    if (output === undefined) return await writeData(shell.terminal.stdout, content)
    await writeWhole(output, content)
    writeLine(shell.terminal.stderr, `${output}: ${humanBytes((await stat(output)).size)}`)
  })
}
