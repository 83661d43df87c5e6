// Wraps data keys. Each blob has a data key of its own; SQL keeps it wrapped by the master key, bound to the project
// and key of its blob. Rotating the master key therefore rewrites wrapped keys and leaves every blob as it is. The
// secrets of webhooks, of 32 bytes as well, are wrapped in the same way, bound to a name in place of the key.
//
//   version 1 (1 byte) | ID of the master key (8) | nonce (24) | data key sealed by XAES-256-GCM (32 + 16)
//
// The first two, the project and the blob's key are associated data.
import { createCipheriv, createDecipheriv, createSecretKey, type KeyObject, randomBytes } from 'node:crypto'
import { BlobDamaged } from './blobs.ts'
import type { MasterKey } from './master-key.ts'

// XAES-256-GCM (https://c2sp.org/XAES-256-GCM): AES-256-GCM under a key derived afresh from a 192-bit nonce.
// The master key wraps one data key per blob, billions over its life, and the random 96-bit nonces of plain
// AES-GCM are only safe for 2^32 messages; these are for 2^80.

const XAES_NONCE_BYTES = 24
const XAES_TAG_BYTES = 16

const BLOCK_BYTES = 16
const GCM_NONCE_BYTES = 12

/** Encrypts; returns the ciphertext followed by the tag. `key`: 256 bits; `nonce`: 24 random bytes, never reused. */
export function xaesSeal(key: KeyObject, nonce: Buffer, plain: Buffer, aad: Buffer): Buffer {
  const cipher = createCipheriv('aes-256-gcm', derive(key, nonce), nonce.subarray(-GCM_NONCE_BYTES))
  cipher.setAAD(aad)
  return Buffer.concat([cipher.update(plain), cipher.final(), cipher.getAuthTag()])
}

/** Decrypts the result of `xaesSeal`. Throws if key, nonce, associated data or ciphertext differ. */
export function xaesOpen(key: KeyObject, nonce: Buffer, sealed: Buffer, aad: Buffer): Buffer {
  const decipher = createDecipheriv('aes-256-gcm', derive(key, nonce), nonce.subarray(-GCM_NONCE_BYTES), {
    authTagLength: XAES_TAG_BYTES,
  })
  decipher.setAAD(aad)
  decipher.setAuthTag(sealed.subarray(-XAES_TAG_BYTES))
  return Buffer.concat([decipher.update(sealed.subarray(0, -XAES_TAG_BYTES)), decipher.final()])
}

/** Derives the key: CMAC in counter mode over the first half of the nonce, as the specification unrolls it. */
function derive(key: KeyObject, nonce: Buffer): KeyObject {
  const subkey = doubled(blocks(key, Buffer.alloc(BLOCK_BYTES)))
  const messages = Buffer.alloc(2 * BLOCK_BYTES)
  for (const counter of [1, 2]) {
    const message = messages.subarray((counter - 1) * BLOCK_BYTES, counter * BLOCK_BYTES)
    message.set([0, counter, 0x58, 0])
    nonce.copy(message, 4, 0, BLOCK_BYTES - 4)
    for (let i = 0; i < BLOCK_BYTES; i++) message[i]! ^= subkey[i]!
  }
  return createSecretKey(blocks(key, messages))
}

/** Encrypts each block by the bare block cipher: a part of CMAC, never used on data. */
function blocks(key: KeyObject, data: Buffer): Buffer {
  return createCipheriv('aes-256-ecb', key, null).setAutoPadding(false).update(data)
}

/** Multiplies a block by x in GF(2^128). */
function doubled(block: Buffer): Buffer {
  const out = Buffer.alloc(BLOCK_BYTES)
  for (let i = 0; i < BLOCK_BYTES; i++) out[i] = (block[i]! << 1) | ((block[i + 1] ?? 0) >> 7)
  if (block[0]! & 0x80) out[BLOCK_BYTES - 1]! ^= 0x87
  return out
}

export const DATA_KEY_BYTES = 32

const VERSION = 1
const HEAD_BYTES = 1 + 8
const WRAPPED_BYTES = HEAD_BYTES + XAES_NONCE_BYTES + DATA_KEY_BYTES + XAES_TAG_BYTES

/** Wraps `data_key` into base64url text that only `master` opens, and only for this project and blob key. */
export function wrapKey(data_key: Buffer, project_id: string, key: string, master: MasterKey): string {
  const head = Buffer.concat([Buffer.of(VERSION), Buffer.from(master.id, 'hex')])
  const nonce = randomBytes(XAES_NONCE_BYTES)
  const sealed = xaesSeal(master.secret, nonce, data_key, associated(head, project_id, key))
  return Buffer.concat([head, nonce, sealed]).toString('base64url')
}

/** Unwraps a data key. Throws BlobDamaged, which tells a wrong master key, another blob and alteration apart. */
export function unwrapKey(wrapped: string, project_id: string, key: string, master: MasterKey): Buffer {
  const master_id = masterKeyIdOf(wrapped)
  if (master_id === null) throw new BlobDamaged(key, 'its wrapped key is none of ours')
  if (master_id !== master.id) {
    throw new BlobDamaged(
      key,
      `sealed with another master key (${master_id}; this process has ${master.id}): start with the key that sealed it`,
    )
  }
  const bytes = Buffer.from(wrapped, 'base64url')
  const head = bytes.subarray(0, HEAD_BYTES)
  const nonce = bytes.subarray(HEAD_BYTES, HEAD_BYTES + XAES_NONCE_BYTES)
  const sealed = bytes.subarray(HEAD_BYTES + XAES_NONCE_BYTES)
  try {
    return xaesOpen(master.secret, nonce, sealed, associated(head, project_id, key))
  } catch {
    throw new BlobDamaged(key, 'its wrapped key was altered, or belongs to another blob or project')
  }
}

/** The ID of the master key that wrapped a key; null if the text is no wrapped key. */
export function masterKeyIdOf(wrapped: string): string | null {
  const bytes = Buffer.from(wrapped, 'base64url')
  if (bytes.length !== WRAPPED_BYTES || bytes[0] !== VERSION) return null
  return bytes.subarray(1, HEAD_BYTES).toString('hex')
}

/** Unwraps a data key by `from` and wraps it by `to`. Throws BlobDamaged when `from` does not open it. */
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

/** Encodes project and blob key as bytes that no other pair has. */
export function owner(project_id: string, key: string): Buffer {
  const project = Buffer.from(project_id)
  const length = Buffer.alloc(2)
  length.writeUInt16BE(project.length)
  return Buffer.concat([length, project, Buffer.from(key)])
}
