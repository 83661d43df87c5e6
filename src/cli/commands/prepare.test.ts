import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { test } from 'node:test'
import { nextRound, readToolResults, readTurns } from './prepare.ts'

function stream(...lines: string[]): Readable {
  return Readable.from(lines.map((line) => Buffer.from(`${line}\n`)))
}

function answer(custom_id: string, ...callIds: string[]): string {
  const tool_calls = callIds.map((id) => ({
    id,
    type: 'function',
    function: { name: 'look', arguments: '{"at": 1e400}' },
  }))
  const message = {
    role: 'assistant',
    content: null,
    ...(callIds.length > 0 ? { tool_calls } : {}),
    apiError: null,
  }
  return JSON.stringify({ custom_id, response: { body: { choices: [{ index: 0, message }] } }, error: null })
}

const said = (custom_id: string, tool_call_id: string, content: unknown): string =>
  JSON.stringify({ custom_id, tool_call_id, content })

test('the next round has the bytes of the line, with the answer and the tool results at the end of its messages', async () => {
  const input =
    '{"metadata":{"entity":"u"},"body":{"seed":9007199254740993,"messages":[ {"role":"user","content":"\\u00e9 ]"} ] , "z":1.0},"url":"/v1/chat/completions","custom_id":"\\u0061","method":"POST"}'
  const turns = await readTurns(stream(answer('a', 'c1', 'c2'), answer('b')))
  const results = await readToolResults(
    stream(said('a', 'c2', { ok: true }), said('a', 'c1', 'plain "text"')),
  )
  const made = (await buffer(nextRound(stream(input), turns, results))).toString()
  const calls = ['c1', 'c2'].map((id) => ({
    id,
    type: 'function',
    function: { name: 'look', arguments: '{"at": 1e400}' },
  }))
  const added = [
    { role: 'assistant', content: null, tool_calls: calls },
    { role: 'tool', tool_call_id: 'c1', content: 'plain "text"' },
    { role: 'tool', tool_call_id: 'c2', content: '{"ok":true}' },
  ]
  const texts = added.map((message) => JSON.stringify(message)).join(',')
  assert.equal(made, `${input.replace('"} ] ,', `"} ,${texts}] ,`)}\n`)
})

test('files with a byte order mark, CRLF and blank lines make the same next round', async () => {
  const input =
    '{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[1]}}'
  const marked = (line: string): Readable => Readable.from([Buffer.from(`\ufeff${line}\r\n\r\n \n`)])
  const roundOf = async (streamOf: (line: string) => Readable): Promise<string> => {
    const turns = await readTurns(streamOf(answer('a', 'c1')))
    const results = await readToolResults(streamOf(said('a', 'c1', 1)))
    return String(await buffer(nextRound(streamOf(input), turns, results)))
  }
  const made = await roundOf(marked)
  assert.match(made, /"tool_call_id":"c1"/)
  assert.equal(made, await roundOf(stream))
})

test('the next round has only lines with tool calls, in input order', async () => {
  const line = (id: string): string =>
    `{"custom_id":"${id}","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"x"}]}}`
  const turns = await readTurns(stream(answer('c', '1'), answer('b'), answer('a', '1')))
  const results = await readToolResults(stream(said('a', '1', 1), said('c', '1', 2)))
  const made = await buffer(nextRound(stream(line('a'), line('b'), line('c')), turns, results))
  const ids = made
    .toString()
    .trimEnd()
    .split('\n')
    .map((text) => JSON.parse(text).custom_id)
  assert.deepEqual(ids, ['a', 'c'])
})

test('a call without a result and an invalid result are errors that name them', async () => {
  const turns = await readTurns(stream(answer('a', 'c1')))
  const input =
    '{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"x"}]}}'
  await assert.rejects(
    buffer(nextRound(stream(input), turns, await readToolResults(stream(said('a', 'other', 1))))),
    /no result for look \(c1\) of line a/,
  )
  await assert.rejects(readToolResults(stream(said('a', 'c1', 1), '{"custom_id":"a"}')), /line 2/)
  await assert.rejects(
    readToolResults(stream('', '{"custom_id":')),
    /^Failure: tool results, line 2: not JSON/,
  )
  await assert.rejects(
    readTurns(stream(answer('a'), ' ', '{"custom')),
    /^Failure: the output, line 3: not JSON/,
  )
  await assert.rejects(
    buffer(nextRound(stream('{"a":1}'), turns, new Map())),
    /not the input file of this batch/,
  )
})
