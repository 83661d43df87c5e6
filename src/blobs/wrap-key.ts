// Each blob has a data key of its own; SQL keeps it wrapped by the master key, bound to the project and key
// of its blob. Rotating the master key therefore rewrites wrapped keys and leaves every blob as it is.
//
//   version 1 (1 byte) | ID of the master key (8) | nonce (24) | data key sealed by XAES-256-GCM (32 + 16)
//
// The first two, the project and the blob's key are associated data.
import { randomBytes } from 'node:crypto'
import { BlobDamaged } from './blobs.ts'
import type { MasterKey } from './master-key.ts'
import { XAES_NONCE_BYTES, XAES_TAG_BYTES, xaesOpen, xaesSeal } from './xaes.ts'

export const DATA_KEY_BYTES = 32

const VERSION = 1
const HEAD_BYTES = 1 + 8
const WRAPPED_BYTES = HEAD_BYTES + XAES_NONCE_BYTES + DATA_KEY_BYTES + XAES_TAG_BYTES

/** `data_key` as base64url text that only `master` opens, and only for this project and blob key. */
export function wrapKey(data_key: Buffer, project_id: string, key: string, master: MasterKey): string {
  const head = Buffer.concat([Buffer.of(VERSION), Buffer.from(master.id, 'hex')])
  const nonce = randomBytes(XAES_NONCE_BYTES)
  const sealed = xaesSeal(master.secret, nonce, data_key, associated(head, project_id, key))
  return Buffer.concat([head, nonce, sealed]).toString('base64url')
}

/** Throws BlobDamaged, saying whether another master key, another blob or alteration is the reason. */
export function unwrapKey(wrapped: string, project_id: string, key: string, master: MasterKey): Buffer {
  const bytes = Buffer.from(wrapped, 'base64url')
  if (bytes.length !== WRAPPED_BYTES || bytes[0] !== VERSION)
    throw new BlobDamaged(key, 'its wrapped key is none of ours')
  const head = bytes.subarray(0, HEAD_BYTES)
  const master_id = head.subarray(1).toString('hex')
  if (master_id !== master.id) {
    throw new BlobDamaged(
      key,
      `sealed with another master key (${master_id}; this process has ${master.id}): start with the key that sealed it`,
    )
  }
  const nonce = bytes.subarray(HEAD_BYTES, HEAD_BYTES + XAES_NONCE_BYTES)
  const sealed = bytes.subarray(HEAD_BYTES + XAES_NONCE_BYTES)
  try {
    return xaesOpen(master.secret, nonce, sealed, associated(head, project_id, key))
  } catch {
    throw new BlobDamaged(key, 'its wrapped key was altered, or belongs to another blob or project')
  }
}

/** The ID of the master key that opens it; null when this is no wrapped key of ours. */
export function masterKeyIdOf(wrapped: string): string | null {
  const bytes = Buffer.from(wrapped, 'base64url')
  if (bytes.length !== WRAPPED_BYTES || bytes[0] !== VERSION) return null
  return bytes.subarray(1, HEAD_BYTES).toString('hex')
}

/** The same data key, wrapped by `to` in place of `from`. Throws BlobDamaged when `from` does not open it. */
export function rewrap(
  wrapped: string,
  project_id: string,
  key: string,
  from: MasterKey,
  to: MasterKey,
): string {
  return wrapKey(unwrapKey(wrapped, project_id, key, from), project_id, key, to)
}

function associated(head: Buffer, project_id: string, key: string): Buffer {
  return Buffer.concat([head, owner(project_id, key)])
}

/** Project and blob key as bytes that no other pair shares. */
export function owner(project_id: string, key: string): Buffer {
  const project = Buffer.from(project_id)
  const length = Buffer.alloc(2)
  length.writeUInt16BE(project.length)
  return Buffer.concat([length, project, Buffer.from(key)])
}
