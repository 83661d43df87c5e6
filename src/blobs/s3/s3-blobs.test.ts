import assert from 'node:assert/strict'
import { rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { after, describe, it } from 'node:test'
import { blobsConformance } from '../../../test/conformance/blobs.ts'
import { type S3Server, s3Server, TEST_BUCKET } from '../../../test/fakes/s3-server.ts'
import { listen } from '../../../test/support/listen.ts'
import { BlobMissing, BlobStoreFailed } from '../blobs.ts'
import { S3Blobs, type S3Options } from './s3-blobs.ts'

const MIB = 1024 * 1024
const OURS = 'some/where'

/** The endpoint of a real server: S3_TEST_ENDPOINT, with S3_TEST_BUCKET and AWS_… as for the service. */
const REAL = process.env.S3_TEST_ENDPOINT

const server: S3Server = await s3Server()
after(() => server[Symbol.asyncDispose]())

blobsConformance('a bucket', async () => {
  const made = await fresh()
  made.server.page_keys = 7
  return made
})

if (REAL !== undefined) {
  let n = 0
  blobsConformance(`the bucket at ${REAL}`, async () => {
    const blobs = new S3Blobs({
      bucket: process.env.S3_TEST_BUCKET ?? TEST_BUCKET,
      prefix: `offpeak-test-${process.pid}-${++n}`,
      endpoint: REAL,
      region: process.env.AWS_REGION ?? 'us-east-1',
      path_style: process.env.S3_TEST_PATH_STYLE !== 'false',
      access_key_id: process.env.AWS_ACCESS_KEY_ID ?? 'test',
      secret_access_key: process.env.AWS_SECRET_ACCESS_KEY ?? 'test',
      session_token: process.env.AWS_SESSION_TOKEN ?? null,
    })
    await blobs.check()
    return {
      blobs,
      async [Symbol.asyncDispose]() {
        for await (const { key } of blobs.list('')) await blobs.delete(key)
        blobs.close()
      },
    }
  })
}

describe('blobs in a bucket', () => {
  it('a blob is one object under the prefix, and nothing outside the prefix is listed', async () => {
    await using made = await fresh()
    server.objects.set('some/where-else/a', { bytes: Buffer.from('not ours'), modified: 1 })
    await made.blobs.put('a/b', [Buffer.from('x')])
    assert.deepEqual([...server.objects.keys()], ['some/where-else/a', `${OURS}/a/b`])
    assert.deepEqual(await keys(made.blobs), ['a/b'])
  })

  it('a small blob is one request; a large one goes up in parts of 8 MiB', async () => {
    await using made = await fresh()
    await made.blobs.put('small', [Buffer.alloc(8 * MIB - 1)])
    assert.deepEqual(methods(), ['PUT'])
    const large = Buffer.alloc(20 * MIB, 7)
    large.writeUInt32LE(0xdeadbeef, 17 * MIB)
    server.requests.length = 0
    assert.equal(await made.blobs.put('large', [large]), large.length)
    assert.deepEqual(methods().sort(), ['POST', 'POST', 'PUT', 'PUT', 'PUT'])
    assert.ok(server.objects.get(`${OURS}/large`)?.bytes.equals(large))
    const tail = await read(made.blobs, 'large', { start: 17 * MIB, end: 17 * MIB + 4 })
    assert.equal(tail.readUInt32LE(), 0xdeadbeef)
    assert.equal(server.uploads.size, 0)
  })

  it('an upload whose source fails after some parts is aborted', async () => {
    await using made = await fresh()
    const source = function* () {
      yield Buffer.alloc(17 * MIB)
      throw new Error('the connection broke')
    }
    await assert.rejects(made.blobs.put('a', source()), /the connection broke/)
    assert.equal(server.uploads.size, 0)
    assert.deepEqual(await keys(made.blobs), [])
  })

  it('a stream is closed when the bucket refuses, and what was begun is aborted', async () => {
    await using made = await fresh()
    for (const refused of ['POST', 'PUT']) {
      server.fault = ({ method }) => (method === refused ? { status: 403, code: 'AccessDenied' } : null)
      const upload = new Readable({
        read() {
          this.push(Buffer.alloc(MIB))
        },
      })
      await assert.rejects(made.blobs.put('a', upload), (error) => {
        assert.ok(error instanceof BlobStoreFailed)
        assert.match(error.message, /writing blob a/)
        return true
      })
      assert.equal(upload.destroyed, true)
      assert.equal(server.uploads.size, 0)
    }
  })

  it('a request that failed for a moment is sent again', async () => {
    await using made = await fresh()
    const faults = [
      { status: 503, code: 'SlowDown' },
      'reset' as const,
      { status: 500, code: 'InternalError' },
    ]
    server.fault = () => faults.shift() ?? null
    await made.blobs.put('a', [Buffer.from('x')])
    assert.equal((await read(made.blobs, 'a')).toString(), 'x')
    assert.equal(faults.length, 0)
  })

  it('a read that breaks off goes on where it was', async () => {
    await using made = await fresh()
    const content = Buffer.alloc(4 * MIB)
    for (let i = 0; i < content.length; i += 4) content.writeUInt32LE(i, i)
    await made.blobs.put('a', [content])
    server.requests.length = 0
    let cuts = 3
    server.fault = () => (cuts-- > 0 ? 'cut' : null)
    const got = await read(made.blobs, 'a', { start: 5, end: content.length - 3 })
    assert.ok(got.equals(content.subarray(5, content.length - 3)))
    assert.equal(server.requests.length, 4)
  })

  it('the answer to the completion of an upload may be lost', async () => {
    await using made = await fresh()
    const large = Buffer.alloc(9 * MIB, 1)
    let lost = false
    server.fault = ({ method, query, key }) => {
      if (lost || method !== 'POST' || !query.has('uploadId')) return null
      lost = true
      const id = query.get('uploadId') ?? ''
      server.uploads.delete(id)
      server.objects.set(key, { bytes: large, modified: Date.now() })
      return 'reset'
    }
    assert.equal(await made.blobs.put('a', [large]), large.length)
    assert.equal(lost, true)
  })

  it('a sweep aborts uploads that were begun long ago, and no others', async () => {
    await using made = await fresh()
    const begun = (key: string, initiated: number) =>
      server.uploads.set(key, { key, initiated, parts: new Map() })
    begun(`${OURS}/old`, 1_000)
    begun(`${OURS}/young`, 5_000)
    begun('elsewhere/old', 1_000)
    assert.equal(await made.blobs.sweepUploads(3_000), 1)
    assert.deepEqual([...server.uploads.keys()], [`${OURS}/young`, 'elsewhere/old'])
    server.fault = () => ({ status: 501, code: 'NotImplemented' })
    assert.equal(await made.blobs.sweepUploads(9_000), 0)
  })

  it('a bucket that is not there or closed to us is told at the start, and is never a missing blob', async () => {
    await using made = await fresh()
    await made.blobs.check()
    const none = new S3Blobs({ ...options(), bucket: 'no-such-bucket' })
    await assert.rejects(none.check(), /opening the bucket no-such-bucket.*NoSuchBucket/)
    await assert.rejects(read(none, 'a'), BlobStoreFailed)
    none.close()
    server.fault = () => ({ status: 403, code: 'AccessDenied' })
    await assert.rejects(made.blobs.check(), BlobStoreFailed)
    await assert.rejects(read(made.blobs, 'a'), BlobStoreFailed)
    await assert.rejects(made.blobs.size('a'), BlobStoreFailed)
    await assert.rejects(made.blobs.delete('a'), BlobStoreFailed)
    await assert.rejects(keys(made.blobs), BlobStoreFailed)
  })

  it('an empty range of a missing blob is still a missing blob', async () => {
    await using made = await fresh()
    await assert.rejects(read(made.blobs, 'a', { start: 0, end: 0 }), BlobMissing)
    await made.blobs.put('a', [Buffer.from('x')])
    assert.equal((await read(made.blobs, 'a', { start: 0, end: 0 })).length, 0)
  })
})

function options(): S3Options {
  return {
    bucket: TEST_BUCKET,
    prefix: OURS,
    endpoint: server.endpoint,
    region: 'us-east-1',
    path_style: true,
    access_key_id: 'test',
    secret_access_key: 'test',
    session_token: null,
  }
}

/** Empties the bucket. */
async function fresh(): Promise<AsyncDisposable & { blobs: S3Blobs; server: S3Server }> {
  server.objects.clear()
  server.uploads.clear()
  server.requests.length = 0
  server.fault = () => null
  const blobs = new S3Blobs(options())
  return {
    blobs,
    server,
    async [Symbol.asyncDispose]() {
      server.fault = () => null
      blobs.close()
    },
  }
}

function methods(): string[] {
  return server.requests.map((request) => request.method)
}

async function keys(blobs: S3Blobs): Promise<string[]> {
  const found: string[] = []
  for await (const { key } of blobs.list('')) found.push(key)
  return found.sort()
}

async function read(blobs: S3Blobs, key: string, range?: { start: number; end: number }): Promise<Buffer> {
  return await buffer(blobs.read(key, range))
}

describe('a bucket without a key in the configuration', () => {
  /** A server in place of a container's endpoint, STS and an instance's metadata. Its keys expire at once. */
  const identities = createServer(async (request, response) => {
    const body = String(await buffer(request))
    const expires = new Date(Date.now() + 1_000).toISOString()
    const isSts = request.method === 'POST'
    if (request.url?.endsWith('/api/token'))
      return void response.setHeader('x-aws-ec2-metadata-token-ttl-seconds', '60').end('t')
    if (request.url?.endsWith('security-credentials/')) return void response.end('the-role')
    const AccessKeyId = `KEY${++issued}`
    const key = { AccessKeyId, SecretAccessKey: 's', Expiration: expires }
    if (!isSts) return void response.end(JSON.stringify({ ...key, Token: 'token', Code: 'Success' }))
    assert.match(body, /Action=AssumeRoleWithWebIdentity.*WebIdentityToken=of-the-account/)
    const text = Object.entries({ ...key, SessionToken: 'token' }).map(
      ([name, value]) => `<${name}>${value}</${name}>`,
    )
    const result = `<AssumeRoleWithWebIdentityResult><Credentials>${text.join('')}</Credentials></AssumeRoleWithWebIdentityResult>`
    response.setHeader('content-type', 'text/xml')
    response.end(`<AssumeRoleWithWebIdentityResponse>${result}</AssumeRoleWithWebIdentityResponse>`)
  })
  const KEYS_KEPT = 3
  let issued = 0
  /** Whether the server accepts a key: the SDK signs with an expiring key while it requests the next one. */
  const isHeld = (authorization = ''): boolean =>
    issued - Number(/Credential=KEY(\d+)/.exec(authorization)?.[1]) <= KEYS_KEPT
  const file = join(tmpdir(), `offpeak-token-${process.pid}`)
  const NOWHERE = {
    AWS_CONFIG_FILE: '/nowhere',
    AWS_SHARED_CREDENTIALS_FILE: '/nowhere',
    AWS_EC2_METADATA_DISABLED: 'true',
  }
  const role = 'arn:aws:iam::123456789012:role/offpeak'
  const kinds: [source: RegExp, env: (url: string) => Record<string, string>][] = [
    [/container's or pod's role/, (url) => ({ AWS_CONTAINER_CREDENTIALS_FULL_URI: `${url}/creds` })],
    [
      /service account's token/,
      (url) => ({
        AWS_WEB_IDENTITY_TOKEN_FILE: file,
        AWS_ROLE_ARN: role,
        AWS_ENDPOINT_URL_STS: url,
        AWS_REGION: 'eu-west-1',
      }),
    ],
    [
      /the instance's role/,
      (url) => ({ AWS_EC2_METADATA_SERVICE_ENDPOINT: url, AWS_EC2_METADATA_DISABLED: 'false' }),
    ],
  ]
  for (const [source, env] of kinds)
    it(`is opened as ${source.source}, whose credentials are renewed as they expire`, async (t) => {
      await using made = await fresh()
      await using at = await listen(identities)
      await writeFile(file, 'of-the-account')
      const variables = { ...NOWHERE, ...env(at.url) }
      const unset = { AWS_ACCESS_KEY_ID: undefined, AWS_SECRET_ACCESS_KEY: undefined, AWS_PROFILE: undefined }
      const before = Object.keys({ ...variables, ...unset }).map((name) => [name, process.env[name]] as const)
      t.after(async () => {
        for (const [name, value] of before)
          if (value === undefined) delete process.env[name]
          else process.env[name] = value
        await rm(file, { force: true })
      })
      for (const name of Object.keys(unset)) delete process.env[name]
      Object.assign(process.env, variables)
      const blobs = new S3Blobs({ ...options(), access_key_id: null, secret_access_key: null })
      made.server.fault = ({ headers }) =>
        isHeld(headers.authorization) && headers['x-amz-security-token'] === 'token'
          ? null
          : { status: 403, code: 'ExpiredToken' }
      const first = issued
      let n = 0
      while (issued - first <= 2 * KEYS_KEPT) await blobs.put(`a/${n++}`, [Buffer.from('x')])
      assert.equal((await keys(blobs)).length, n)
      assert.match(await blobs.identity(), source)
      blobs.close()
    })
})
