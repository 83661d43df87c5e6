// The link that a shell makes for a browser, against the real service.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { offpeak, offpeakJson, offpeakWith } from '../fakes/offpeak.ts'
import { configFor, TestService } from '../service.ts'
import { listen } from '../support/listen.ts'

test('offpeak console prints a link that signs in once', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  const { out, err, code } = await offpeak(service, 'console', '--no-open')
  assert.equal(code, 0, err)
  assert.match(err, /once, within a minute/)
  const url = new URL(out.trim())
  assert.equal(url.origin + url.pathname, `${service.url}/console`)
  const signIn = () =>
    fetch(`${service.url}/console/session`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-offpeak-console': '1' },
      body: JSON.stringify({ link: url.hash.slice('#link='.length) }),
    })
  assert.equal((await signIn()).status, 200)
  assert.equal((await signIn()).status, 401)
  const other = await offpeakJson<{ url: string }>(service, 'console')
  assert.notEqual(other.url, out.trim())
})

/** In place of the program that opens a page: reports what all users see of it, and the page. */
const OPENER = `#!/usr/bin/env node
import { existsSync, readFileSync, statSync } from 'node:fs'
const args = process.argv.slice(2)
const page = args.at(-1)
const seen = existsSync(page)
  ? { args, mode: statSync(page).mode & 0o777, text: readFileSync(page, 'utf8') }
  : { args }
await fetch(process.env.REPORT_TO, { method: 'POST', body: JSON.stringify(seen) })
`

test('the browser gets the link from a page that only its user reads, not in arguments', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-opener-'))
  const reports = createServer()
  await using listening = await listen(reports)
  try {
    for (const name of ['xdg-open', 'open']) await writeFile(join(folder, name), OPENER, { mode: 0o755 })
    const env = {
      PATH: [folder, dirname(process.execPath), '/usr/bin', '/bin'].join(delimiter),
      XDG_CACHE_HOME: folder,
      REPORT_TO: listening.url,
    }
    // The second time, there is a page already.
    for (let i = 0; i < 2; i++) {
      const reported = once(reports, 'request')
      const { out, err, code } = await offpeakWith(service, { env }, ['console'])
      assert.equal(code, 0, err)
      const [request, response] = await reported
      const seen = JSON.parse(await text(request))
      response.end()
      const { hash } = new URL(out.trim())
      assert.ok(!seen.args.join(' ').includes(hash.slice('#link='.length)), seen.args)
      assert.equal(seen.mode, 0o600)
      assert.ok(seen.text.includes(`content="0; url=${out.trim()}"`), seen.text)
    }
  } finally {
    await rm(folder, { recursive: true })
  }
})
