// The statuses of a file: an upload is pending until its validation ends; result files are created as processed.

export const FILE_STATUSES = ['pending', 'processed', 'error'] as const
export type FileStatus = (typeof FILE_STATUSES)[number]

export const FILE_TRANSITIONS: Record<FileStatus, readonly FileStatus[]> = {
  pending: ['processed', 'error'],
  processed: [],
  error: [],
}

export const FILE_PURPOSES = ['batch', 'batch_output'] as const
export type FilePurpose = (typeof FILE_PURPOSES)[number]
