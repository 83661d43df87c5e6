// AWS KMS: the file has the base64 of the ciphertext, as `aws kms generate-data-key-without-plaintext` prints it. Calls are
// signed with the identity of the process, as those to buckets are.
import { S3Client } from '@aws-sdk/client-s3'
import type { KeyService } from '../key-service.ts'
import { postJson, textAt } from './post-json.ts'

interface KmsKey {
  /** The ID, ARN or alias of the KMS key. */
  key_id: string
  /** The AWS region; null: from the environment or a profile. */
  region: string | null
  /** The address of KMS; null: AWS itself. */
  address: string | null
}

export function awsKms({ key_id, region, address }: KmsKey): KeyService {
  // The client finds identity and region, and signs; S3 itself is not called.
  const { config } = new S3Client(region === null ? {} : { region })
  const call = async (action: string, what: object): Promise<object> => {
    const where = await config.region()
    const url = new URL(address ?? `https://kms.${where}.amazonaws.com/`)
    const body = JSON.stringify({ KeyId: key_id, ...what })
    const signer = await config.signer({
      name: 'sigv4',
      signingName: 'kms',
      signingRegion: where,
      properties: {},
    })
    const { headers } = await signer.sign({
      ...{
        method: 'POST',
        protocol: url.protocol,
        hostname: url.hostname,
        path: url.pathname,
        query: {},
        body,
      },
      headers: {
        host: url.host,
        'content-type': 'application/x-amz-json-1.1',
        'x-amz-target': `TrentService.${action}`,
      },
    })
    const { host: _, ...signed } = headers
    return await postJson(url.href, signed, body)
  }
  return {
    name: `AWS KMS (${key_id})`,
    async encrypt(plain) {
      const answer = await call('Encrypt', { Plaintext: plain.toString('base64') })
      return Buffer.from(`${textAt(answer, 'CiphertextBlob')}\n`)
    },
    async decrypt(stored) {
      const answer = await call('Decrypt', { CiphertextBlob: stored.toString('utf8').trim() })
      return Buffer.from(textAt(answer, 'Plaintext'), 'base64')
    },
  }
}
