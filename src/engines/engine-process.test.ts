import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { EngineOutput, outputFileOf } from './engine-process.ts'

const folder = mkdtempSync(join(tmpdir(), 'offpeak-output-'))
after(() => rmSync(folder, { recursive: true, force: true }))

test('output goes to a file that only its user may read, and a full one makes room for the next', async () => {
  const path = outputFileOf(folder, '../vllm', 'Qwen/Qwen3-8B')
  assert.equal(path, join(folder, 'engines', '.._vllm-Qwen_Qwen3-8B.log'))
  for (const pieces of [
    ['one\n', 'two\n', 'three\n', 'four\n'],
    ['five\n', 'six\n'],
  ]) {
    const output = new EngineOutput(path, 14)
    await Promise.all(pieces.map((piece) => output.write(Buffer.from(piece))))
  }
  assert.equal(readFileSync(path, 'utf8'), 'four\nfive\nsix\n')
  assert.equal(readFileSync(`${path}.1`, 'utf8'), 'one\ntwo\nthree\n')
  assert.deepEqual(
    [path, `${path}.1`].map((file) => statSync(file).mode & 0o777),
    [0o600, 0o600],
  )
})

test('a file that cannot be written holds nothing up', async () => {
  const output = new EngineOutput('/dev/null/engines/a.log')
  await output.write(Buffer.from('CUDA out of memory\n'))
  assert.equal(output.lastWords, 'out of memory')
})

test('the kind of the last words is told, and none of the words', async () => {
  const kinds: [words: string, kind: string | null][] = [
    ['torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB', 'out of memory'],
    ['ggml_backend_cuda_buffer_type_alloc_buffer: failed to allocate CUDA0 buffer', 'out of memory'],
    [
      "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 80): address already in use",
      'port in use',
    ],
    ['gguf_init_from_file: failed to open GGUF file x.gguf', 'model not found'],
    ['OSError: You are trying to access a gated repo.', 'no access to the model'],
    ['vllm: error: unrecognized arguments: --uds', 'unknown argument'],
    ['error while loading shared libraries: libcudart.so.12', 'missing library'],
    ['RuntimeError: Failed to infer device type', 'no usable GPU'],
    ['OSError: [Errno 28] No space left on device', 'disk full'],
    ['the patient has scarlet fever', null],
  ]
  for (const [words, kind] of kinds) {
    const output = new EngineOutput('/dev/null/a.log')
    await output.write(Buffer.from(`loading\n${words}\nexiting`))
    assert.equal(output.lastWords, kind, words)
  }
})
