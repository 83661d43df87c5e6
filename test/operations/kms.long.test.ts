// The master key with moto's KMS, where that is installed (pip install 'moto[server]').
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { awsKms } from '../../src/blobs/key-services/aws-kms.ts'
import { freePort } from '../../src/engines/engine-access.ts'
import { start } from '../fakes/programs.ts'

const hasMoto = spawnSync('moto_server', ['--help']).status === 0

test('KMS decrypts what it has encrypted, and no other key does', { skip: !hasMoto }, async (t) => {
  const port = await freePort()
  await start(t, 'moto_server', ['-p', String(port)], port)
  const address = `http://127.0.0.1:${port}`
  const headers = { 'x-amz-target': 'TrentService.CreateKey', 'content-type': 'application/x-amz-json-1.1' }
  const create = async (): Promise<string> => {
    const authorization =
      'AWS4-HMAC-SHA256 Credential=id/20260101/eu-west-1/kms/aws4_request, SignedHeaders=host, Signature=0'
    const made = await fetch(address, { method: 'POST', headers: { ...headers, authorization }, body: '{}' })
    return ((await made.json()) as { KeyMetadata: { KeyId: string } }).KeyMetadata.KeyId
  }
  Object.assign(process.env, { AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret' })
  const [one, other] = [await create(), await create()].map((key_id) =>
    awsKms({ key_id, region: 'eu-west-1', address }),
  )
  assert.ok(one && other)
  const key = randomBytes(32)
  const stored = await one.encrypt(key)
  assert.deepEqual(await one.decrypt(stored), key)
  await assert.rejects(other.decrypt(stored), /AccessDenied|IncorrectKey/)
})
