// Why a file is still `pending`.
import { hasWorker } from '../../../store/lane-reports.ts'
import type { Store } from '../../../store/store.ts'
import { readValidation } from '../../../store/tasks.ts'
import type { FileObject } from '../../../wire/file.ts'

export async function fileWaitingReason(
  { read, claimSql }: Pick<Store, 'read' | 'claimSql'>,
  file_id: string,
): Promise<NonNullable<FileObject['waiting_reason']>> {
  const task = await readValidation(read, file_id)
  if (task?.state === 'leased') return { code: 'validating', message: 'A worker is reading the file.' }
  if (!(await hasWorker(read, claimSql)))
    return { code: 'no_worker', message: 'No worker is running; the file is validated when one starts.' }
  if (task && task.last_error !== null)
    return {
      code: 'retrying',
      message: 'Its validation failed because of an internal error and is retried.',
    }
  return { code: 'queued', message: 'Its validation waits for a worker with a free task slot.' }
}
