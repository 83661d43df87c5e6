// A real disk adapter in a temporary folder, for tests and benchmarks.
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DiskBlobs } from '../../src/blobs/disk/disk-blobs.ts'

export interface TemporaryDisk extends AsyncDisposable {
  root: string
  blobs: DiskBlobs
}

export async function temporaryDisk(): Promise<TemporaryDisk> {
  const root = await mkdtemp(join(tmpdir(), 'offpeak-blobs-'))
  return {
    root,
    blobs: new DiskBlobs(root),
    [Symbol.asyncDispose]: () => rm(root, { recursive: true, force: true }),
  }
}
