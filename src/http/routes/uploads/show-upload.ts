// A row of uploads, and one of their parts, as the API shows them.
import { unixSeconds } from '../../../domain/clock.ts'
import type { FileRow, UploadPartRow, UploadRow } from '../../../store/schema.ts'
import type { UploadObject, UploadPartObject } from '../../../wire/upload.ts'
import type { View } from '../../access/compat.ts'
import { showFile } from '../files/show-file.ts'

/** `file`: of a completed upload, while there is one. */
export function showUpload(upload: UploadRow, view: View, file?: FileRow): UploadObject {
  return {
    id: upload.id,
    object: 'upload',
    status: upload.status,
    filename: upload.filename,
    purpose: 'batch',
    mime_type: upload.mime_type,
    bytes: upload.bytes,
    part_bytes: upload.part_bytes,
    created_at: unixSeconds(upload.created),
    expires_at: unixSeconds(upload.expires_at),
    ...(upload.status === 'completed' || view.compat === 'openai'
      ? { file: file ? showFile(file, view) : null }
      : {}),
  }
}

export function showUploadPart(part: UploadPartRow): UploadPartObject {
  return {
    id: part.id,
    object: 'upload.part',
    upload_id: part.upload_id,
    bytes: part.bytes,
    sha256: part.sha256,
    created_at: unixSeconds(part.created),
  }
}
