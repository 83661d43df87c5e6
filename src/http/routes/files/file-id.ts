// IDs of files. Clients of OpenAI's API know them with a hyphen, and some look for it: `file-…` names the same file as
// `file_…` wherever an ID is read, and is what those clients are shown.
import { ID_PREFIXES, isId } from '../../../domain/ids.ts'
import type { View } from '../../access/compat.ts'

const HYPHENATED = 'file-'

/** The ID that a caller means. */
export function fileIdOf(text: string): string {
  const id = text.startsWith(HYPHENATED) ? ID_PREFIXES.file + text.slice(HYPHENATED.length) : text
  return isId('file', id) ? id : text
}

export function shownFileId(id: string, { compat }: View): string {
  return compat === 'openai' && isId('file', id) ? HYPHENATED + id.slice(ID_PREFIXES.file.length) : id
}
