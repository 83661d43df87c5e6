// Keeps small secrets, 32 bytes each, that have to be used again in the clear: wrapped by the master key like
// the data key of a blob, and bound to their project and name, so that a copied row opens nothing.
import type { MasterKey } from './master-key.ts'
import { unwrapKey, wrapKey } from './wrap-key.ts'

export interface KeyBox {
  /** The secret as text that can be stored; only this master key opens it, and only for this project and name. */
  wrap(secret: Buffer, project_id: string, name: string): string
  /** Throws BlobDamaged, naming the secret, where it cannot be opened. */
  unwrap(wrapped: string, project_id: string, name: string): Buffer
}

export function keyBox(master: MasterKey): KeyBox {
  return {
    wrap: (secret, project_id, name) => wrapKey(secret, project_id, name, master),
    unwrap: (wrapped, project_id, name) => unwrapKey(wrapped, project_id, name, master),
  }
}
