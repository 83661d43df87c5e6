// Uploads an input file from disk, a large one in parts; reports progress and hashes the bytes that it sends.
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { stat } from 'node:fs/promises'
import { basename } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { FileObject } from '../../wire/file.ts'
import { Failure } from '../terminal/failure.ts'
import type { ApiClient } from './client.ts'
import { multipartFile } from './multipart.ts'
import { PART_BYTES, uploadInParts } from './upload-in-parts.ts'

export interface Uploaded {
  file: FileObject
  /** Of the bytes that were sent, in hex. */
  sha256: string
}

/** Calls `onProgress` with the bytes sent and the size of the file. */
export async function uploadInput(
  client: ApiClient,
  path: string,
  onProgress: (sent: number, total: number) => void = () => {},
  filename = basename(path),
): Promise<Uploaded> {
  const found = await stat(path)
  if (!found.isFile()) throw new Failure(`${path} is not a regular file; give the path of a JSONL file`)
  if (found.size > PART_BYTES)
    return await uploadInParts(client, { path, filename, bytes: found.size }, onProgress)
  let hash = createHash('sha256')
  const file = await client.send(FileObject, {
    method: 'POST',
    path: '/v1/files',
    body: () => {
      let sent = 0
      hash = createHash('sha256')
      return multipartFile({ purpose: 'batch' }, { path, filename, bytes: found.size }, (block) => {
        hash.update(block)
        sent += block.length
        onProgress(sent, found.size)
      })
    },
  })
  return { file, sha256: hash.digest('hex') }
}

/** SHA-256 of a file, in hex. */
export async function hashFile(path: string): Promise<string> {
  const hash = createHash('sha256')
  await pipeline(createReadStream(path, { highWaterMark: 1024 * 1024 }), hash)
  return hash.digest('hex')
}
