import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { byteLines } from '../../jsonl/byte-lines.ts'
import { ModelOverride } from './upload.ts'

async function* blocksOf(...blocks: (string | Uint8Array)[]): AsyncGenerator<Buffer> {
  for (const block of blocks) yield Buffer.from(block)
}

async function texts(lines: AsyncIterable<{ line: Buffer }>): Promise<string[]> {
  const found: string[] = []
  for await (const { line } of lines) found.push(line.toString('latin1'))
  return found
}

test('lines are the same wherever the blocks end', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.constantFrom('a', 'bc', '\n', '\r\n', '\xff')),
      fc.nat(20),
      async (parts, cut) => {
        const whole = Buffer.from(parts.join(''), 'latin1')
        const lines = await texts(byteLines(blocksOf(whole.subarray(0, cut), whole.subarray(cut))))
        const expected = parts.join('').split('\n')
        if (expected.at(-1) === '') expected.pop()
        assert.deepEqual(lines, expected)
      },
    ),
  )
})

async function overridden(
  model: string,
  lines: readonly string[],
): Promise<{ lines: string[]; text: string | null }> {
  const override = new ModelOverride(model)
  const input = (async function* () {
    yield Buffer.from(lines.join('\n'))
  })()
  const out: Buffer[] = []
  for await (const line of override.lines(input)) out.push(line)
  return { lines: Buffer.concat(out).toString().trimEnd().split('\n'), text: override.text }
}

function line(body: string): string {
  return `{"custom_id": "a", "method":"POST","url":"/v1/chat/completions", "body": ${body} }`
}

test('only the name of the model changes, wherever it stands, and a request without one gets it', async () => {
  const cases = [
    [
      '{"model":"a","messages":[],"seed":12345678901234567890}',
      '{"model":"x\\"y","messages":[],"seed":12345678901234567890}',
    ],
    ['{"messages":[{"model":"a"}], "model" : "b"}', '{"messages":[{"model":"a"}], "model" : "x\\"y"}'],
    ['{"model":7,"messages":[],"model":"a"}', '{"model":"x\\"y","messages":[],"model":"x\\"y"}'],
    ['{"messages":[]}', '{"model":"x\\"y","messages":[]}'],
    ['{ }', '{"model":"x\\"y" }'],
    ['{"model":"x\\"y","messages":[]}', '{"model":"x\\"y","messages":[]}'],
  ] as const
  const { lines, text } = await overridden(
    'x"y',
    cases.map(([body]) => line(body)),
  )
  assert.deepEqual(
    lines,
    cases.map(([, body]) => line(body)),
  )
  assert.equal(text, 'x"y, in place of a in 2 lines, no model in 2 lines, b in 1 line')
})

test('a byte order mark, blank lines and lines that are no requests stay as they are', async () => {
  const { lines, text } = await overridden('m', [
    `\ufeff${line('{"model":"a"}')}`,
    '',
    'nonsense',
    '{"a":1}',
    line('{"model":"m"}'),
  ])
  assert.deepEqual(lines, [
    `\ufeff${line('{"model":"m"}')}`,
    '',
    'nonsense',
    '{"a":1}',
    line('{"model":"m"}'),
  ])
  assert.equal(text, 'm, in place of a in 1 line')
})

test('the summary is silent where the file names this model alone', async () => {
  assert.equal((await overridden('m', [line('{"model":"m"}')])).text, null)
})
