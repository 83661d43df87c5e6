import assert from 'node:assert/strict'
import { test } from 'node:test'
import { textFormat } from './log.ts'

test('a row is text on a terminal, and what others wrote cannot pass for another row or command the terminal', () => {
  const row = {
    level: 40,
    time: 0,
    region: 'local',
    worker: 'w\u001b[2J',
    msg: 'failed\n[00:00:00] INFO: \u001b[31mfine',
  }
  const text = textFormat()(`${JSON.stringify(row)}\n`)
  assert.match(
    text,
    /^\[\d\d:\d\d:00\.000\] WARN: failed\\u000a\[00:00:00\] INFO: \\u001b\[31mfine\n {4}worker: "w\\u001b\[2J"\n$/,
  )
})
