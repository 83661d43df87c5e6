import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { type AllowedPrefix, type BucketUse, resolveBucketUrl } from './bucket-url.ts'
import { ApiError } from './errors.ts'

const ALLOWED: AllowedPrefix[] = [
  { bucket: 'data', prefix: 'team-a', projects: ['a'], access: ['read', 'write'] },
  { bucket: 'data', prefix: 'team-a/in', projects: ['a', 'proj_b'], access: ['read'] },
  { bucket: 'own', prefix: '', projects: ['a'], access: ['write'] },
]
const A = { id: 'proj_a', name: 'a' }
const B = { id: 'proj_b', name: 'b' }

function place(url: string, use: BucketUse = 'read', project = A): string {
  try {
    const { bucket, key } = resolveBucketUrl(ALLOWED, project, use, url)
    return `${bucket.bucket}/${bucket.prefix} ${key}`
  } catch (error) {
    assert.ok(error instanceof ApiError)
    return error.code
  }
}

describe('a URL in a bucket', () => {
  it('is in the longest prefix that its project may use so', () => {
    assert.equal(place('s3://data/team-a/x.jsonl'), 'data/team-a team-a/x.jsonl')
    assert.equal(place('s3://data/team-a/in/day=1/ü x.jsonl'), 'data/team-a/in team-a/in/day=1/ü x.jsonl')
    assert.equal(place('s3://data/team-a/in/x.jsonl', 'read', B), 'data/team-a/in team-a/in/x.jsonl')
    assert.equal(place('s3://data/team-a/in', 'write'), 'data/team-a team-a/in/')
    assert.equal(place('s3://data/team-a/', 'write'), 'data/team-a team-a/')
    assert.equal(place('s3://own/', 'write'), 'own/ ')
  })

  it('is in a bucket of any name that the operator has given', () => {
    const buckets = ['b', 'My_data'].map((bucket) => ({ ...ALLOWED[2]!, bucket }))
    for (const { bucket } of buckets)
      assert.equal(resolveBucketUrl(buckets, A, 'write', `s3://${bucket}/x/`).bucket.bucket, bucket)
  })

  it('is refused elsewhere, with the prefixes that its project may use', () => {
    for (const url of [
      's3://data/team-ab/x',
      's3://data/team-a',
      's3://data/x',
      's3://other/team-a/x',
      's3://own/x',
      's3://DATA/team-a/x',
      's3://d/team-a/x',
    ])
      assert.equal(place(url), 'bucket_not_allowed', url)
    assert.equal(place('s3://data/team-a/x', 'read', B), 'bucket_not_allowed')
    assert.equal(place('s3://data/team-a/in/', 'write', B), 'bucket_not_allowed')
    assert.throws(() => resolveBucketUrl(ALLOWED, A, 'read', 's3://data/x'), {
      message: 'This project may read s3://data/team-a/ and s3://data/team-a/in/, not s3://data/x.',
    })
    assert.throws(() => resolveBucketUrl([], A, 'write', 's3://data/x'), {
      message: 'This project may write no bucket, not s3://data/x.',
    })
  })

  it('has no path that anybody could read as another one', () => {
    const escapes = [
      '../x',
      'in/../../x',
      './x',
      'in/./x',
      'in//x',
      '/x',
      'in/..',
      '%2e%2e/x',
      'in%2fx',
      '..%2Fx',
      'x?versionId=1',
      'x#y',
      'in\\..\\x',
      'x\n',
      'x\u0000',
      'in/',
      '',
      `${'x'.repeat(1024)}`,
    ]
    for (const path of escapes) assert.equal(place(`s3://data/team-a/${path}`), 'invalid_request', path)
    for (const path of escapes.filter((path) => !['in/', '', '/x'].includes(path)))
      assert.equal(place(`s3://data/team-a/${path}`, 'write'), 'invalid_request', path)
    for (const url of ['s3://data', 's3://u:p@data/x', 's3://data:80/x', 'https://data/x', 's3:///x', ''])
      assert.equal(place(url), 'invalid_request', url)
  })
})
