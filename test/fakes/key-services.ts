// Stand-ins of services that encrypt a master key: the transit engine of Vault and AWS KMS, each as far as a key needs it,
// with the answers and errors of the real one. They reverse the bytes.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { json } from 'node:stream/consumers'
import { type Listening, listen } from '../support/listen.ts'

export interface FakeKeyService extends Listening {
  calls: string[]
  /** Every call fails with it while it is set. */
  failure: { status: number; body: object } | null
}

type Answer = { status: number; body: object }
type Act = (request: IncomingMessage, body: Record<string, string>) => Answer

async function serve(act: Act): Promise<FakeKeyService> {
  const server = createServer(async (request: IncomingMessage, response: ServerResponse) => {
    fake.calls.push(`${request.method} ${request.url} ${request.headers['x-amz-target'] ?? ''}`.trim())
    const given = (await json(request)) as Record<string, string>
    const { status, body } = fake.failure ?? act(request, given)
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
  })
  const fake: FakeKeyService = { ...(await listen(server)), calls: [], failure: null }
  return fake
}

const turned = (base64: string): string => Buffer.from(base64, 'base64').reverse().toString('base64')

/** With the key `offpeak` and the token `s.token`. */
export async function fakeVault(): Promise<FakeKeyService> {
  return await serve(({ url, headers }, body) => {
    if (headers['x-vault-token'] !== 's.token')
      return { status: 403, body: { errors: ['permission denied'] } }
    const [, ciphertext] = /^vault:v1:(.*)$/.exec(body.ciphertext ?? '') ?? []
    if (url === '/v1/transit/encrypt/offpeak')
      return {
        status: 200,
        body: { data: { ciphertext: `vault:v1:${turned(body.plaintext ?? '')}`, key_version: 1 } },
      }
    if (url !== '/v1/transit/decrypt/offpeak') return { status: 404, body: { errors: [] } }
    if (ciphertext === undefined) return { status: 400, body: { errors: ['invalid ciphertext: no prefix'] } }
    return { status: 200, body: { data: { plaintext: turned(ciphertext) } } }
  })
}

/** With the key `alias/offpeak`, for whoever signs a call of `kms`. */
export async function fakeKms(): Promise<FakeKeyService> {
  return await serve(({ headers }, body) => {
    const failed = (type: string): Answer => ({ status: 400, body: { __type: type, message: 'no' } })
    if (
      !/^AWS4-HMAC-SHA256 Credential=id\/\d{8}\/eu-west-1\/kms\/aws4_request/.test(
        headers.authorization ?? '',
      )
    )
      return failed('UnrecognizedClientException')
    if (body.KeyId !== 'alias/offpeak') return failed('NotFoundException')
    if (headers['x-amz-target'] === 'TrentService.Encrypt')
      return { status: 200, body: { CiphertextBlob: turned(body.Plaintext ?? ''), KeyId: body.KeyId } }
    return { status: 200, body: { Plaintext: turned(body.CiphertextBlob ?? ''), KeyId: body.KeyId } }
  })
}
