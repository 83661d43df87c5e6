// The statuses of an upload in parts.

export const UPLOAD_STATUSES = ['pending', 'completed', 'cancelled', 'expired'] as const
export type UploadStatus = (typeof UPLOAD_STATUSES)[number]
