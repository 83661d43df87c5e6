// The transit engine of HashiCorp Vault and OpenBao: the file has a ciphertext such as `vault:v1:…`.
import { readFile } from 'node:fs/promises'
import type { KeyService } from '../key-service.ts'
import { postJson, textAt } from './post-json.ts'

interface TransitKey {
  address: string
  mount: string
  key_id: string
  namespace: string | null
  token: string | null
  /** The file of the token, which an agent of Vault renews; wins over `token`. */
  token_file: string | null
}

export function vaultTransit({ address, mount, key_id, namespace, ...given }: TransitKey): KeyService {
  const call = async (action: 'encrypt' | 'decrypt', what: object): Promise<object> => {
    const token = given.token_file === null ? (given.token ?? '') : await readFile(given.token_file, 'utf8')
    const url = `${address.replace(/\/+$/, '')}/v1/${mount}/${action}/${encodeURIComponent(key_id)}`
    const headers = {
      'x-vault-token': token.trim(),
      'x-vault-request': 'true',
      ...(namespace !== null && { 'x-vault-namespace': namespace }),
    }
    const { data } = Object(await postJson(url, headers, JSON.stringify(what)))
    return Object(data)
  }
  return {
    name: `Vault (${mount}/${key_id})`,
    async encrypt(plain) {
      return Buffer.from(
        `${textAt(await call('encrypt', { plaintext: plain.toString('base64') }), 'ciphertext')}\n`,
      )
    },
    async decrypt(stored) {
      const answer = await call('decrypt', { ciphertext: stored.toString('utf8').trim() })
      return Buffer.from(textAt(answer, 'plaintext'), 'base64')
    },
  }
}
