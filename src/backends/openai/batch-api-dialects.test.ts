import assert from 'node:assert/strict'
import { test } from 'node:test'
import { dialectOf } from './batch-api-dialects.ts'

test('Together takes uploads at a path and with fields of its own; whatever is not known speaks as OpenAI', () => {
  const together = dialectOf('https://api.together.ai/v1')
  assert.equal(together.upload_path, '/files/upload')
  assert.equal(together.file_purpose, 'batch-api')
  assert.deepEqual(together.upload_fields('a.jsonl'), { file_name: 'a.jsonl', file_type: 'jsonl' })
  const cell = dialectOf('http://cell:8080/v1')
  assert.deepEqual([cell.upload_path, cell.file_purpose, cell.pollMsMin], ['/files', 'batch', 0])
})
