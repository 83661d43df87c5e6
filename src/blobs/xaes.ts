// XAES-256-GCM (https://c2sp.org/XAES-256-GCM): AES-256-GCM under a key derived afresh from a 192-bit nonce.
// The master key wraps one data key per blob, billions over its life, and the random 96-bit nonces of plain
// AES-GCM are only safe for 2^32 messages; these are for 2^80.
import { createCipheriv, createDecipheriv, createSecretKey, type KeyObject } from 'node:crypto'

export const XAES_NONCE_BYTES = 24
export const XAES_TAG_BYTES = 16

const BLOCK_BYTES = 16
const GCM_NONCE_BYTES = 12

/** Ciphertext followed by the tag. `key` is 256 bits, `nonce` 24 random bytes never used with it before. */
export function xaesSeal(key: KeyObject, nonce: Buffer, plain: Buffer, aad: Buffer): Buffer {
  const cipher = createCipheriv('aes-256-gcm', derive(key, nonce), nonce.subarray(-GCM_NONCE_BYTES))
  cipher.setAAD(aad)
  return Buffer.concat([cipher.update(plain), cipher.final(), cipher.getAuthTag()])
}

/** Throws when any of key, nonce, associated data and ciphertext is not what it was when sealed. */
export function xaesOpen(key: KeyObject, nonce: Buffer, sealed: Buffer, aad: Buffer): Buffer {
  const decipher = createDecipheriv('aes-256-gcm', derive(key, nonce), nonce.subarray(-GCM_NONCE_BYTES), {
    authTagLength: XAES_TAG_BYTES,
  })
  decipher.setAAD(aad)
  decipher.setAuthTag(sealed.subarray(-XAES_TAG_BYTES))
  return Buffer.concat([decipher.update(sealed.subarray(0, -XAES_TAG_BYTES)), decipher.final()])
}

/** CMAC in counter mode over the first half of the nonce, as the specification unrolls it. */
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

/** The bare block cipher on each block: the building stone of CMAC, never used on data. */
function blocks(key: KeyObject, data: Buffer): Buffer {
  return createCipheriv('aes-256-ecb', key, null).setAutoPadding(false).update(data)
}

/** Multiplication by x in GF(2^128). */
function doubled(block: Buffer): Buffer {
  const out = Buffer.alloc(BLOCK_BYTES)
  for (let i = 0; i < BLOCK_BYTES; i++) out[i] = (block[i]! << 1) | ((block[i + 1] ?? 0) >> 7)
  if (block[0]! & 0x80) out[BLOCK_BYTES - 1]! ^= 0x87
  return out
}
