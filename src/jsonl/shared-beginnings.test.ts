import assert from 'node:assert/strict'
import { test } from 'node:test'
import { seededRandom } from '../../test/simulation/seeded-random.ts'
import { type InputLine, LineScanner } from './line-scan.ts'
import { SharedBeginnings, type Sharing } from './shared-beginnings.ts'

const CHUNK_LINES = 50

interface Asked {
  text: string
  model?: string
  tools?: object[]
}

function lineOf({ text, model = 'm', tools }: Asked): InputLine {
  const body = { model, messages: [{ role: 'user', content: text }], tools }
  const json = JSON.stringify({ custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body })
  const line = new LineScanner().scan(Buffer.from(json), 0, Buffer.byteLength(json))
  assert.ok(line.ok)
  return line
}

function sharingOf(lines: readonly Asked[]): Sharing {
  const beginnings = new SharedBeginnings()
  for (const [i, line] of lines.entries())
    beginnings.add(lineOf(line), Math.floor(i / CHUNK_LINES), ((i % CHUNK_LINES) * 1000) / CHUNK_LINES)
  return beginnings.finish(Math.ceil(lines.length / CHUNK_LINES))
}

/** A document of words that depend on its number. */
function documentOf(number: number, bytes = 4096): string {
  let text = ''
  for (let at = number; text.length < bytes; at++) text += `${Math.imul(at + 1, 0x9e3779b1) >>> 0} `
  return text.slice(0, bytes)
}

/** A shuffled copy, the same in every run. */
function shuffled<T>(all: readonly T[]): T[] {
  const random = seededRandom(7)
  const keyed = all.map((one) => ({ one, key: random.next() }))
  return keyed.sort((a, b) => a.key - b.key).map(({ one }) => one)
}

const ASKED = 'What does it say, and is it right?'

function byQuestion(documents: number, questions: number, bytes?: number): Asked[] {
  return Array.from({ length: documents * questions }, (_, i) => ({
    text: `${documentOf(i % documents, bytes)} ${Math.floor(i / documents)} ${ASKED}`,
  }))
}

function shares({ prompt_bytes, shared_bytes, near_bytes }: Sharing): number[] {
  return [shared_bytes, near_bytes].map((bytes) => Math.round((100 * bytes) / prompt_bytes))
}

test('a file by question is claimed in chunks about the same documents, whose bytes it shares', () => {
  const sharing = sharingOf(byQuestion(400, 3))
  assert.deepEqual(sharing.chunks?.slice(0, 6), [0, 8, 16, 1, 9, 17])
  assert.deepEqual(
    [...sharing.chunks!].sort((a, b) => a - b),
    Array.from({ length: 24 }, (_, i) => i),
  )
  assert.deepEqual([sharing.depth, sharing.isScattered], [4096, undefined])
  assert.deepEqual(shares(sharing), [66, 0])
})

test('a file by document, and one of prompts that have nothing in common, stay as they are', () => {
  const lines = byQuestion(400, 3)
  const byDocument = lines.map((_, i) => lines[Math.floor(i / 3) + 400 * (i % 3)]!)
  for (const [order, found] of [
    [byDocument, [65, 65]],
    [byQuestion(1200, 1), [0, 0]],
    [byQuestion(1200, 1, 100), [0, 0]],
  ] as const) {
    const sharing = sharingOf(order)
    assert.deepEqual([sharing.depth, sharing.chunks], [0, undefined])
    assert.deepEqual(shares(sharing), found)
  }
})

test('a shuffled file shares as much, and no order of its chunks helps', () => {
  const sharing = sharingOf(shuffled(byQuestion(400, 3)))
  assert.deepEqual([sharing.depth, sharing.chunks, sharing.isScattered], [4096, undefined, true])
  assert.ok(Math.abs(shares(sharing)[0]! - 65) <= 2)
})

test('of what all prompts begin with, and of documents behind it, both are counted', () => {
  const system = documentOf(1_000_000, 2048)
  const sharing = sharingOf(byQuestion(400, 3, 2048).map(({ text }) => ({ text: system + text })))
  const [shared = 0, near = 0] = shares(sharing)
  assert.ok(shared >= 79 && shared <= 82, `${shared} %`)
  assert.ok(near >= 47 && near <= 50, `${near} %`)
  assert.equal(sharing.chunks?.length, 24)
})

test('the same words are another beginning for another model, and behind other tools', () => {
  const text = documentOf(1)
  const tool = (name: string) => [{ type: 'function', function: { name: name.repeat(200) } }]
  assert.equal(shares(sharingOf([{ text }, { text }]))[0], 50)
  assert.equal(shares(sharingOf([{ text }, { text, model: 'n' }]))[0], 0)
  assert.equal(
    shares(
      sharingOf([
        { text, tools: tool('f') },
        { text, tools: tool('g') },
      ]),
    )[0],
    0,
  )
  assert.equal(
    shares(
      sharingOf([
        { text, tools: tool('f') },
        { text, tools: tool('f') },
      ]),
    )[0],
    50,
  )
})

test('documents that differ in a few bytes are told apart', () => {
  const page = 'It says what is to be done. '.repeat(40)
  const lines = Array.from({ length: 1500 }, (_, i) => ({ text: `Page ${100_000 + (i % 500)}: ${page}` }))
  const sharing = sharingOf(lines)
  assert.ok(sharing.shared_bytes > 0.58 * sharing.prompt_bytes)
  assert.ok(sharing.shared_bytes < 0.68 * sharing.prompt_bytes)
})

test('the lines of a common beginning are counted by its signature, until other beginnings turn out to have it', () => {
  const page = 'what is to be done '.repeat(220)
  const texts = Array.from({ length: 2000 }, (_, i) => page.slice(0, 4100).concat(`${i}`))
  const [shared = 0, near = 0] = shares(sharingOf(texts.map((text) => ({ text }))))
  assert.ok(shared >= 98 && near >= 98, `${shared} %, ${near} %`)
  // At byte 56 of the prompt, of which no signature is made.
  const differing = texts.map(
    (text, i) => `${text.slice(0, 29)}${String.fromCharCode(0x4e00 + (i % 100))}${text.slice(30)}`,
  )
  const [repeated = 0, close = 0] = shares(sharingOf(differing.map((text) => ({ text }))))
  assert.ok(repeated >= 90 && close <= 6, `${repeated} %, ${close} %`)
})
