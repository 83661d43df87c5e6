// A row of files as the API shows it.
import { unixSeconds } from '../../../domain/clock.ts'
import { fileProblems } from '../../../store/files.ts'
import type { FileRow } from '../../../store/schema.ts'
import type { FileObject } from '../../../wire/file.ts'
import type { View } from '../../access/compat.ts'
import { shownFileId } from './file-id.ts'

export function showFile(file: FileRow, view: View): FileObject {
  const created = unixSeconds(file.created)
  return {
    id: shownFileId(file.id, view),
    object: 'file',
    purpose: file.purpose,
    filename: file.filename,
    bytes: file.bytes,
    line_count: file.line_count,
    // The status that OpenAI's clients know for a file that is not yet validated.
    status: view.compat === 'openai' && file.status === 'pending' ? 'uploaded' : file.status,
    ...(file.status_details === null && view.compat !== 'openai'
      ? {}
      : { status_details: file.status_details }),
    ...(file.errors === null ? {} : { errors: fileProblems(file.errors) }),
    region: view.region,
    created,
    created_at: created,
    expires_at: unixSeconds(file.expires_at),
  }
}
