// The console in a real Chromium before a whole service.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rm, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { Browser, Locator, Page } from 'playwright-core'
import { createKey } from '../../src/admin/create-key.ts'
import { dayOf, startOfHour } from '../../src/domain/days.ts'
import { newId } from '../../src/domain/ids.ts'
import { recordOf } from '../../src/domain/json-record.ts'
import { DAY_SUMS } from '../../src/domain/line-sums.ts'
import { freePort } from '../../src/engines/engine-access.ts'
import { addUsage } from '../../src/store/usage.ts'
import { openSession, setWorkerReport } from '../../src/store/workers.ts'
import type { BatchObject } from '../../src/wire/batch.ts'
import type { LimitObject } from '../../src/wire/limit.ts'
import type { ApiKeyObject } from '../../src/wire/project.ts'
import type { List } from '../../src/wire/shape.ts'
import type { ServiceStatus } from '../../src/wire/status.ts'
import type { UsageObject } from '../../src/wire/usage.ts'
import { offpeakWith } from '../fakes/offpeak.ts'
import { folderOf, NGINX, startNginx } from '../fakes/programs.ts'
import { type S3Server, TEST_BUCKET } from '../fakes/s3-server.ts'
import { completion, echo, send, type TestUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch } from '../service.ts'
import { Visitor, WITHOUT_TLS, withoutBrowser } from './chromium.ts'
import { answer, type ConsoleWorld, consoleWorld, PAGES } from './console-world.ts'

/** What runs in the page sees the page's. */
declare const sessionStorage: { setItem: (name: string, text: string) => void }
declare const document: {
  cookie: string
  activeElement: unknown
  body: unknown
}
declare const scrollY: number
declare const scrollTo: (x: number, y: number) => void
declare const navigator: { clipboard: { readText: () => Promise<string> } }

/** By the key that the focus leaves one press away. */
async function confirmRetry(page: Page): Promise<void> {
  await page.getByRole('dialog').getByRole('button', { name: 'Retry', exact: true }).press('Enter')
}

describe('the console in a browser', { skip: withoutBrowser }, () => {
  let world: ConsoleWorld
  let browser: Browser
  let upstream: TestUpstream
  let s3: S3Server
  let service: TestService
  let operator: string
  let tenant: string
  let batch: WireBatch
  let structured: WireBatch

  before(async () => {
    world = await consoleWorld()
    ;({ browser, upstream, s3, service, operator, tenant, batch, structured } = world)
  })

  after(() => world?.[Symbol.asyncDispose]())

  test('a wrong key is refused, the right one signs in, and signing out ends the session', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    visitor.expected = [401]
    await visitor.open('/console')
    await page.getByLabel('API key').fill('opk_local_wrong')
    await page.getByRole('button', { name: 'Sign in' }).click()
    await page.getByRole('alert').getByText('This is no key of this service').waitFor()
    await visitor.screenshot('sign-in')
    await visitor.typeKey(operator)
    const cookies = await page.context().cookies()
    assert.deepEqual(
      cookies.map(({ httpOnly, sameSite }) => ({ httpOnly, sameSite })),
      [{ httpOnly: true, sameSite: 'Strict' }],
    )
    assert.equal(
      await page.evaluate(() => `${document.cookie}${JSON.stringify(localStorage)}`),
      '{}',
      'no script has the key',
    )
    await page.getByRole('button', { name: 'Sign out' }).click()
    await page.getByLabel('API key').waitFor()
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    await page.setViewportSize({ width: 390, height: 800 })
    assert.deepEqual(await visitor.tooSmallOrHigh(), [])
  })

  test('behind a proxy that has the service below a path, every address stays below it', {
    skip: existsSync(NGINX) ? false : 'nginx is not installed',
  }, async (t) => {
    const port = await freePort()
    const below = `location /tools/offpeak/ { proxy_pass ${service.url}/; proxy_buffering off; }`
    await startNginx(t, await folderOf(t), `server { listen 127.0.0.1:${port}; ${below} }`, port)
    await using visitor = await Visitor.arrive(browser, `http://127.0.0.1:${port}/tools/offpeak`)
    const { page } = visitor
    await visitor.open('/')
    assert.equal(new URL(page.url()).pathname, '/tools/offpeak/console')
    await visitor.signIn(operator)
    for (const to of PAGES) await visitor.open(`/console${to}`)
    await visitor.open(`/console/batches/${batch.id}/lines/1`)
    await page.getByRole('link', { name: 'Batches' }).first().click()
    await page
      .getByRole('link', { name: String(batch.name) })
      .first()
      .click()
    assert.equal(new URL(page.url()).pathname, `/tools/offpeak/console/batches/${batch.id}`)
    const download = page.waitForEvent('download')
    await page.getByText('Download').click()
    await page.getByRole('link', { name: /CSV/ }).first().click()
    assert.match((await download).url(), /\/tools\/offpeak\/v1\/batches\//)
  })

  test('a link asks before it signs in, and ends the session that there was', async () => {
    const other = await createKey(service.stores.store, service.stores.store.clock, service.config.region, {
      project: 'other',
      plan: 'payg',
    })
    const made = await fetch(`${service.url}/console/links`, {
      method: 'POST',
      headers: { authorization: `Bearer ${other.key}` },
    })
    const { path } = (await made.json()) as { path: string }
    await using visitor = await Visitor.arrive(browser, service.url)
    visitor.expected = [401]
    const { page } = visitor
    const asks = page.getByRole('heading', { name: 'Sign in with this link?' })
    const first = page.getByRole('heading', { name: 'Overview', level: 1 })
    await visitor.signIn(operator)
    const [old] = await page.context().cookies()
    await visitor.open(path)
    await asks.waitFor()
    await page.getByText('You are signed in to team.').waitFor()
    assert.ok(!page.url().includes('link='))
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    await page.getByRole('button', { name: 'Cancel' }).click()
    await first.waitFor()
    assert.equal(await page.locator('.account-name').innerText(), 'team')

    await visitor.open(path)
    await asks.waitFor()
    await page.getByRole('button', { name: 'Sign in' }).click()
    await first.waitFor()
    assert.equal(await page.locator('.account-name').innerText(), 'other')
    const ended = await fetch(`${service.url}/console/session`, {
      headers: { cookie: `${old?.name}=${old?.value}` },
    })
    assert.equal(ended.status, 401)

    await visitor.open(path)
    await asks.waitFor()
    await page.getByRole('button', { name: 'Sign in' }).click()
    await page.getByText('The link was used before or has expired.').waitFor()
    await page.getByRole('button', { name: 'Cancel' }).click()
    await first.waitFor()
  })

  test('the page that offpeak console opens signs in for good', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'offpeak-console-'))
    for (const name of ['xdg-open', 'open']) await symlink('/bin/true', join(folder, name))
    const env = { PATH: folder, XDG_CACHE_HOME: folder }
    const { code, err } = await offpeakWith(service, { env }, ['console'])
    assert.equal(code, 0, err)
    const context = await browser.newContext()
    const page = await context.newPage()
    await page.goto(`file://${folder}/offpeak/console.html`)
    await page.getByRole('button', { name: 'Sign in' }).click()
    const first = page.getByRole('heading', { name: 'Overview', level: 1 })
    await first.waitFor()
    await page.reload()
    await page.getByRole('heading', { level: 1 }).waitFor()
    assert.equal(await first.count(), 1, 'still signed in')
    await context.close()
    await rm(folder, { recursive: true })
  })

  test('a text is copied also where the page came without TLS, which has no clipboard of its own', async () => {
    const url = service.url.replace('127.0.0.1', WITHOUT_TLS)
    await using visitor = await Visitor.arrive(browser, url)
    const { page } = visitor
    // Chromium says that it ignores headers which need TLS.
    visitor.expected = [Number.NaN]
    await visitor.typeKey(operator)
    assert.equal(await page.evaluate('isSecureContext'), false)
    await visitor.open(`/console/batches/${batch.id}`)
    await page.getByRole('button', { name: 'Copy' }).first().click()
    await page.getByTitle('Copied').waitFor()
    await page.getByRole('searchbox').first().click()
    await page.keyboard.press('Control+V')
    assert.equal(await page.getByRole('searchbox').first().inputValue(), batch.id)
  })

  test('revoking the key ends its sessions with the next call', async () => {
    const { key, key_id } = await createKey(
      service.stores.store,
      service.stores.store.clock,
      service.config.region,
      { project: 'team', plan: 'payg' },
    ).then((made) => ({ key: made.key, key_id: made.id }))
    await using visitor = await Visitor.arrive(browser, service.url)
    visitor.expected = [401]
    await visitor.signIn(key)
    await visitor.settled()
    const other = await visitor.page.context().newPage()
    await service.stores.store.write((tx) =>
      tx.updateTable('api_keys').set({ revoked_at: 1 }).where('id', '=', key_id).execute(),
    )
    await other.goto(`${service.url}/console/limits`)
    await other.getByText('Your session has ended').waitFor()
    await visitor.page.getByLabel('API key').waitFor()
    await visitor.page.getByText('Your session has ended').waitFor()
  })

  test('a request that another site forges changes nothing', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    await visitor.signIn(operator)
    visitor.expected = [403]
    const status = await visitor.page.evaluate(async (id) => {
      const response = await fetch(`/v1/batches/${id}/cancel`, { method: 'POST', credentials: 'same-origin' })
      return response.status
    }, batch.id)
    assert.equal(status, 403)
  })

  test('why lines failed is on the page of the batch, and exactly these are retried', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    assert.match(await page.getByRole('row').nth(1).innerText(), /Partly failed/)
    await visitor.open(`/console/batches/${batch.id}`)
    await page.getByText('10 failed lines').waitFor()
    await page.getByRole('button', { name: 'Show lines' }).first().click()
    await page.getByRole('table', { name: 'Lines' }).getByText('line-1', { exact: true }).waitFor()
    assert.match(page.url(), /status=failed/)
    await page.locator('tbody [role=row]').nth(9).waitFor()
    assert.equal(await page.locator('tbody [role=row]').count(), 10)
    upstream.reply = echo
    await page.getByRole('button', { name: 'Retry failed' }).click()
    await page.getByRole('dialog').getByText('10 lines are sent again').waitFor()
    await confirmRetry(page)
    await page.waitForURL((url) => url.pathname.includes('/batches/') && !url.pathname.includes(batch.id))
    const retried = await service.ended(page.url().split('/').at(-1) ?? '')
    upstream.reply = answer
    assert.deepEqual(retried.request_counts, { total: 10, completed: 10, failed: 0 })
    await page.getByText('Completed').first().waitFor()
    await page.getByRole('link', { name: batch.id }).click()
    await page.getByText('10 failed lines').waitFor()
    await page.getByRole('link', { name: retried.id }).click()
    await page.getByRole('link', { name: batch.id }).waitFor()
  })

  test('exactly the failed lines that a filter shows are retried', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/batches/${batch.id}?status=failed&search=line-1`)
    await page.getByRole('table', { name: 'Lines' }).getByText('line-1', { exact: true }).waitFor()
    const shown = await page.locator('tbody [role=row]').count()
    await page.getByRole('search').getByRole('button', { name: 'Retry these' }).click()
    await confirmRetry(page)
    await page.waitForURL((url) => url.pathname.includes('/batches/') && !url.pathname.includes(batch.id))
    const retried = await service.ended(page.url().split('/').at(-1) ?? '')
    assert.equal(shown, 3)
    assert.equal(retried.request_counts.total, shown)
  })

  test('no retry is offered where none can help', async () => {
    const refused = { error: { message: 'no', code: 'content_filter' } }
    upstream.reply = ({ response }) => send(response, 400, JSON.stringify(refused))
    const { id } = await service.run([line('filtered')])
    upstream.reply = answer
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/batches/${id}?status=failed&code=content_filter`)
    await page.getByRole('listitem').getByText('content_filter').waitFor()
    await page.getByRole('button', { name: 'Download' }).or(page.getByText('Download')).first().waitFor()
    assert.equal(await page.getByRole('button', { name: /Retry/ }).count(), 0)
  })

  test('a batch is paused and resumed', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    const held = Promise.withResolvers<void>()
    upstream.reply = async (call) => {
      await held.promise
      echo(call)
    }
    const { id } = await service.create((await service.upload(JSON.stringify(line('paused')))).id)
    await visitor.open(`/console/batches/${id}`)
    await page.getByRole('button', { name: 'Pause' }).click()
    await page.getByRole('button', { name: 'Resume' }).waitFor()
    const speed = page.locator('.figure').filter({ hasText: 'Speed' }).getByRole('definition')
    assert.equal(await speed.innerText(), '–')
    await page.getByRole('button', { name: 'Resume' }).click()
    await page.getByRole('button', { name: 'Pause' }).waitFor()
    held.resolve()
    upstream.reply = answer
    await page.getByText('Completed').first().waitFor()
  })

  test('answers are a table where the requests ask for columns', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/batches/${structured.id}`)
    await page.getByRole('button', { name: 'Answers' }).click()
    const table = page.getByRole('table', { name: 'Answers' })
    await table.getByText('=2+2').first().waitFor()
    assert.deepEqual(await table.getByRole('columnheader').allInnerTexts(), [
      '#',
      'custom_id',
      'label',
      'score',
    ])
    assert.match(page.url(), /view=answers/)
    await table.getByText(/^upstream_rejected: /).waitFor()
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    await visitor.screenshot('answers')
    await page.getByRole('link', { name: 'answer-3', exact: true }).click()
    await page.getByText('The answer matches its schema.').waitFor()
  })

  test('the first page tells what is broken, what will be late, and what is spent', async () => {
    const { store } = service.stores
    // As a worker with a live server reports it.
    await store.write(async (tx) => {
      const now = store.clock.now()
      const worker = await openSession(tx, 30_000, now)
      const live_hours: [number, number][] = [[startOfHour(now), 0.25]]
      const gone = {
        ...{ model: 'gone', upstream: 'gpu-9', in_flight: 0, concurrency: 1, concurrency_max: 8 },
        ...{ circuit: 'open' as const, lines_per_s: 0, latency_ms: null, errors_per_s: 0 },
        ...{ last_error: 'connect ECONNREFUSED', reachable: false },
      }
      const report = { open_chunks: 0, stores_failing: false, upstreams: [gone], live_hours }
      await setWorkerReport(tx, worker, report, now)
    })
    const limit = { scope: 'entity', entity: 'user:42', metric: 'tokens', amount: 1, window: 'day' }
    const { id: limit_id } = await service.json<{ id: string }>('POST', '/v1/limits', limit)
    const held = Promise.withResolvers<void>()
    upstream.reply = async (call) => {
      await held.promise
      echo(call)
    }
    const file = await service.upload(JSON.stringify(line('slow')))
    const { id } = await service.create(file.id, { metadata: { name: 'Slow one' } })
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, '/console')
    await page.getByText('No batch is expected to miss its deadline.').waitFor()
    await page.getByText('Live traffic, the darker the more').waitFor()
    await page.getByRole('link', { name: 'Cap reached' }).waitFor()
    await page.locator('.notice.bad').getByText('user:42').waitFor()
    const change = (values: object) =>
      store.write((tx) => tx.updateTable('batches').set(values).where('id', '=', id).execute())
    await change({ total: 10 ** 9, lines_per_s: 1, rate_sampled_at: store.clock.now() })
    await page.reload()
    const late = page.getByRole('table', { name: 'Will be late' })
    await late.getByRole('link', { name: 'Slow one' }).waitFor()
    await visitor.screenshot('overview-late')
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    const { cost_usd } = await service.json<{ cost_usd: number }>('GET', '/v1/usage/entities')
    const shown = await page
      .locator('.figure')
      .filter({ hasText: 'This month' })
      .getByRole('definition')
      .getAttribute('title')
    assert.equal(Number(shown?.replace(/[^0-9.]/g, '')), cost_usd)
    await page.locator('.notice.bad', { hasText: 'gone · gpu-9: connect ECONNREFUSED' }).waitFor()
    await page.locator('.notice.bad', { hasText: 'user:42' }).getByRole('link').click()
    await page.getByLabel('Amount').fill('1000000')
    await page.getByRole('button', { name: 'Save' }).click()
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    const { amount } = await service.json<{ amount: number }>('GET', `/v1/limits/${limit_id}`)
    assert.equal(amount, 1_000_000, 'the cap that blocks is raised in two clicks')
    await change({ total: 1 })
    held.resolve()
    upstream.reply = answer
    await service.request('DELETE', `/v1/limits/${limit_id}`)
    await service.ended(id)
  })

  test('tasks of every day take few clicks from the first page', async () => {
    const file = await service.upload(['a', 'fail'].map((id) => JSON.stringify(line(id, id))).join('\n'))
    const first = await service.create(file.id, { metadata: { name: 'Run 1', entity: 'team:clicks' } })
    await service.ended(first.id)
    await service.ended((await service.create(file.id, { metadata: { name: 'Run 2' } })).id)
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    /** From the first page; `act` clicks by what it is given. */
    const clicks = async (act: (click: (on: Locator) => Promise<void>) => Promise<void>): Promise<number> => {
      let count = 0
      await visitor.open('/console')
      await act(async (on) => {
        count++
        await on.click()
      })
      return count
    }
    const row = (name: string) => page.getByRole('row').filter({ hasText: name })
    const link = (name: string) => page.getByRole('link', { name, exact: true })
    const button = (name: string) => page.getByRole('button', { name })

    const why = await clicks(async (click) => {
      await click(row('Run 1').getByRole('link', { name: '1', exact: true }))
      await page.getByText('the prompt is not allowed').first().waitFor()
      await click(button('Retry failed'))
      await confirmRetry(page)
      await page.waitForURL((url) => !url.pathname.endsWith(first.id) && url.pathname.includes('/batches/b'))
    })
    const dearest = await clicks(async (click) => {
      await click(page.getByRole('link', { name: 'By entity, last 7 days' }))
      const { groups = [] } = await service.json<UsageObject>('GET', '/v1/usage/entities?group_by=entity')
      const [most] = groups.toSorted((a, b) => b.cost_usd - a.cost_usd)
      const cells = page.getByRole('table', { name: 'Usage' }).getByRole('row').nth(1)
      await cells.getByText(most?.entity ?? '(none)', { exact: true }).waitFor()
    })
    const create = await clicks(async (click) => {
      await click(page.locator('main').getByRole('link', { name: 'New batch' }))
      const chooser = page.waitForEvent('filechooser')
      await click(page.getByText('Drop a JSONL file here'))
      const buffer = Buffer.from(JSON.stringify(line('clicked')))
      await (await chooser).setFiles({ name: 'clicked.jsonl', mimeType: 'application/jsonl', buffer })
      for (const title of ['At most', 'Expected'])
        await page.locator('.figure').filter({ hasText: title }).getByRole('definition').first().waitFor()
      await click(button('Create batch'))
      await page.getByRole('heading', { name: 'clicked.jsonl', level: 1 }).waitFor()
    })
    const compare = await clicks(async (click) => {
      await click(link('Run 2'))
      await click(link('Compare with'))
      await page.getByLabel('Compare with').waitFor()
      assert.equal(await page.getByLabel('Compare with').inputValue(), first.id, 'the last run of its input')
      await page.locator('.figure').filter({ hasText: 'Same answer' }).waitFor()
    })
    const deleted = await service.upload(JSON.stringify(line('deleted')))
    await service.request('DELETE', `/v1/files/${deleted.id}`)
    const who = await clicks(async (click) => {
      await click(button('Search'))
      await page.getByRole('dialog').getByRole('searchbox').fill(deleted.id)
      await page.getByRole('dialog').getByRole('link').filter({ hasText: 'Audit' }).waitFor()
      await page.keyboard.press('Enter')
      const calls = page.getByRole('table', { name: 'Calls' })
      await calls.getByText(`DELETE /v1/files/${deleted.id}`).waitFor()
    })
    const spent = await clicks(async (click) => {
      const cap = {
        scope: 'entity',
        entity: 'team:clicks',
        metric: 'cost_usd',
        window: 'month',
        amount: 0.00001,
      }
      const { id } = await service.json<{ id: string }>('POST', '/v1/limits', cap)
      await click(page.locator('main').getByRole('link', { name: 'team:clicks' }).first())
      await page.getByText('/ $0.00001 a month').waitFor()
      await service.request('DELETE', `/v1/limits/${id}`)
    })
    const bottleneck = await clicks(async (click) => {
      await click(link('Servers'))
      const rows = page.getByRole('table', { name: 'Model servers' }).getByRole('row')
      await rows.nth(1).getByText('Healthy').waitFor()
      await page.getByRole('img', { name: 'Requests' }).waitFor()
    })
    const find = await clicks(async (click) => {
      await click(button('Search'))
      await page.getByRole('dialog').getByRole('searchbox').fill('answer-123')
      await page.getByRole('dialog').getByRole('link').filter({ hasText: 'answer-123' }).waitFor()
      await page.keyboard.press('Enter')
      await page.getByRole('heading', { name: 'answer-123', level: 1 }).waitFor()
    })
    assert.deepEqual(
      { why, dearest, create, compare, who, spent, bottleneck, find },
      { why: 2, dearest: 1, create: 3, compare: 2, who: 1, spent: 1, bottleneck: 1, find: 1 },
    )
  })

  test('two batches are compared line by line, what differs first', async () => {
    const ask = (text: string) => service.run(['a', 'b', 'c'].map((id) => line(id, id === 'b' ? text : id)))
    const [one, other] = [await ask('one'), await ask('fail')]
    const third = await service.run([line('c', 'c'), line('d', 'd'), line('b', 'two'), line('a', 'a')])
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/batches/${other.id}`)
    await page.getByRole('link', { name: 'Compare with' }).click()
    await page.getByRole('heading', { name: 'Compare two batches' }).waitFor()
    await page.getByLabel('Compare with').selectOption(one.id)
    const figure = (title: string) =>
      page.locator('.figure').filter({ hasText: title }).getByRole('definition').innerText()
    const rows = page.locator('tbody [role=row]')
    await rows.first().waitFor()
    assert.equal(await rows.count(), 1)
    assert.match(await rows.innerText(), /^b Line 2\s+one\s+upstream_rejected: .*One failed$/s)
    assert.deepEqual([await figure('Same answer'), await figure('One failed')], ['2\n67%', '1\n33%'])
    await page.getByRole('button', { name: 'b', exact: true }).click()
    const marks = page.locator('mark')
    await marks.filter({ hasText: 'the prompt is not allowed' }).waitFor()
    assert.deepEqual(await marks.allInnerTexts(), ['one', await marks.last().innerText()])
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    await visitor.screenshot('compare')
    // Their order does not matter.
    await visitor.open(`/console/batches/compare?a=${one.id}&b=${third.id}`)
    await rows.nth(1).waitFor()
    assert.deepEqual(
      (await rows.allInnerTexts()).map((text) => text.replace(/\s+/g, ' ')),
      [
        'b Line 2 one two 15 → 15 $0.000003 → $0.000003 Other answer',
        'd Line 2 – d – → 15 – → $0.000003 In one only',
      ],
    )
    await page.setViewportSize({ width: 390, height: 800 })
    assert.deepEqual(await visitor.tooSmallOrHigh(), [])
    assert.deepEqual(await visitor.accessibilityProblems(), [])
  })

  test('a line of any batch, a batch, a file, an entity and a page are found from the keyboard', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    const found = page.getByRole('dialog').getByRole('link')
    const search = async (text: string, kind: string): Promise<void> => {
      await page.locator('h1').click()
      await page.keyboard.press(text.startsWith('a') ? '/' : 'Control+k')
      await page.getByRole('dialog').getByRole('searchbox').fill(text)
      await found.filter({ hasText: kind }).filter({ hasText: text }).first().waitFor()
    }
    await search('answer-299', 'Line')
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    await visitor.screenshot('search')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: 'answer-299', level: 1 }).waitFor()
    assert.ok(page.url().endsWith(`/batches/${structured.id}/lines/299`))
    await search(structured.id, 'Batch')
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('Enter')
    await page.getByRole('button', { name: 'Answers' }).waitFor()
    assert.ok(page.url().endsWith(structured.id))
    await search('user:42', 'Entity')
    await found.filter({ hasText: 'Entity' }).click()
    await page.getByRole('heading', { name: 'Usage', level: 1 }).waitFor()
    await search(structured.input_file_id, 'File')
    await found.filter({ hasText: /^File/ }).click()
    await page.getByRole('heading', { name: 'Files', level: 1 }).waitFor()
    await page.getByRole('row').nth(1).waitFor()
    assert.equal(await page.getByRole('row').count(), 2)
    // Enter that comes as soon as the pages are listed, before the browser has drawn them.
    await page.evaluate(`new Promise((resolve) => {
      const observer = new MutationObserver(() => {
        const field = document.querySelector('dialog input')
        if (!field || !document.querySelector('dialog a')) return
        observer.disconnect()
        field.value = 'webho'
        field.dispatchEvent(new Event('input', { bubbles: true }))
        field.form.requestSubmit()
        resolve()
      })
      observer.observe(document.body, { childList: true, subtree: true })
      document.dispatchEvent(new KeyboardEvent('keydown', { key: 'k', ctrlKey: true }))
    })`)
    await page.getByRole('heading', { name: 'Webhooks and events' }).waitFor()
    await page.keyboard.press('Control+k')
    await page.getByRole('dialog').getByRole('searchbox').fill('none such at all')
    await page.getByRole('dialog').getByText('Nothing found').waitFor()
  })

  test('an answer is set as Markdown that loads and runs nothing, and j and k keep to the filter', async () => {
    const text =
      '# Head\n\n**bold** <b>x</b> [a](javascript:alert(1)) ![p](https://x.invalid/p.png)\n\n- one\n- two'
    upstream.reply = ({ response, body }) => {
      if (body.messages.at(-1)?.content === 'fail') answer({ response, body } as Parameters<typeof echo>[0])
      else send(response, 200, completion(text))
    }
    const { id } = await service.run([line('1'), line('2', 'fail'), line('3'), line('4', 'fail'), line('5')])
    upstream.reply = answer
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/batches/${id}?status=completed`)
    await page.getByRole('link', { name: '3', exact: true }).click()
    const said = page.locator('.message.assistant')
    await said.locator('strong', { hasText: 'bold' }).waitFor()
    assert.deepEqual(await said.getByRole('listitem').allInnerTexts(), ['one', 'two'])
    assert.equal(await said.locator('a, img, b').count(), 0)
    assert.match(await said.innerText(), /<b>x<\/b> a javascript:alert\(1\) !\[p\]/)
    await visitor.screenshot('markdown')
    await page.getByRole('button', { name: 'As written' }).click()
    await said.getByText('# Head').waitFor()
    for (const [key, name] of [
      ['j', '5'],
      ['k', '3'],
      ['k', '1'],
    ] as const) {
      await page.getByRole('link', { name: key === 'j' ? 'Next' : 'Previous' }).waitFor()
      await page.keyboard.press(key)
      await page.getByRole('heading', { name, level: 1 }).waitFor()
    }
    await page.getByRole('link', { name: 'Next' }).waitFor()
    assert.equal(await page.getByRole('link', { name: 'Previous' }).count(), 0)
    await visitor.open(`/console/batches/${id}/lines/4`)
    upstream.reply = echo
    await page.getByRole('button', { name: 'Retry this line' }).click()
    await confirmRetry(page)
    await page.waitForURL((url) => !url.pathname.includes(id))
    const retried = await service.ended(page.url().split('/').at(-1) ?? '')
    upstream.reply = answer
    assert.deepEqual(retried.request_counts, { total: 1, completed: 1, failed: 0 })
    const lines = await service.json<List<{ custom_id: string }>>('GET', `/v1/batches/${retried.id}/lines`)
    assert.deepEqual(
      lines.data.map(({ custom_id }) => custom_id),
      ['4'],
    )
  })

  test('hostile Markdown is shown as it was written', async () => {
    const answers = ['>'.repeat(19_000), '> '.repeat(45), `|a|\n|-|\n${'|a|\n'.repeat(10_000)}`]
    upstream.reply = ({ response, body }) =>
      send(response, 200, completion(answers[Number(body.messages.at(-1)?.content)] ?? ''))
    const { id } = await service.run(answers.map((_, i) => line(`${i + 1}`, `${i}`)))
    upstream.reply = answer
    await using visitor = await Visitor.arrive(browser, service.url)
    await visitor.signIn(operator)
    for (const [i, text] of answers.entries()) {
      await visitor.open(`/console/batches/${id}/lines/${i + 1}`)
      await visitor.page.getByRole('button', { name: 'As written' }).waitFor()
      const shown = await visitor.page.locator('.message.assistant .prose').first().textContent()
      assert.equal(shown, text)
    }
  })

  test('batches are filtered by model', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    await visitor.signIn(operator, '/console/batches?model=nobody')
    await visitor.page.getByText('No batch matches these filters.').waitFor()
    await visitor.page.getByLabel('Model').selectOption('m')
    await visitor.page
      .getByRole('row')
      .filter({ hasText: structured.id.slice(-8) })
      .waitFor()
  })

  test('a batch is found by its name wherever it is in the list, and shown under it', async () => {
    const { id } = await service.run([line('named')], { metadata: { name: 'Nachtlauf Übersetzung' } })
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    await page.getByRole('searchbox', { name: 'Search' }).fill('ÜBERSETZUNG nacht')
    await page.getByRole('link', { name: 'Nachtlauf Übersetzung' }).click()
    await page.getByRole('heading', { name: 'Nachtlauf Übersetzung', level: 1 }).waitFor()
    await page.getByText(id.slice(-8)).first().waitFor()
    await page.goBack()
    assert.equal(await page.getByRole('searchbox').inputValue(), 'ÜBERSETZUNG nacht')
    await page.getByRole('row').nth(1).waitFor()
    assert.equal(await page.getByRole('row').count(), 2)
    const file = page.waitForEvent('download')
    await page.getByRole('link', { name: 'CSV' }).click()
    const rows = (await readFile(await (await file).path(), 'utf8')).trim().split('\r\n')
    assert.deepEqual(
      rows.slice(1).map((row) => row.split(',')[0]),
      [id],
    )
    await page.getByLabel('From').fill('2001-01-01')
    await page.getByLabel('To', { exact: true }).fill('2001-01-02')
    await page.getByText('No batch matches these filters.').waitFor()
  })

  test('a webhook is made, its secret shown once, and a test event sent', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    await page.getByRole('link', { name: 'Webhooks' }).click()
    await page.getByRole('button', { name: 'New webhook' }).click()
    await page.getByLabel('URL').fill('https://hooks.invalid/offpeak')
    await page.getByRole('button', { name: 'Create webhook' }).click()
    await page
      .getByRole('dialog')
      .getByText(/^whsec_/)
      .waitFor()
    await page.getByRole('button', { name: 'Close' }).click()
    await page.getByRole('button', { name: 'Send a test event' }).click()
    await page.getByRole('table', { name: 'Deliveries' }).getByText('webhook.test').waitFor()
    await page.getByText('Failing', { exact: true }).waitFor()
  })

  test('links lead past the menu and to the lines, and change nothing else', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/batches/${batch.id}?status=failed`)
    await visitor.settled()
    const focused = (selector: string) =>
      page.locator(selector).evaluate((element) => element === element.ownerDocument.activeElement)
    await page.getByRole('link', { name: 'Skip to content' }).focus()
    await page.keyboard.press('Enter')
    assert.ok(await focused('#main'))
    await page.getByRole('link', { name: 'Skip to the lines' }).focus()
    await page.keyboard.press('Enter')
    assert.ok(await focused('#lines'))
    await page.locator('tbody [role=row]').nth(9).waitFor()
    assert.equal(await page.locator('tbody [role=row]').count(), 10)
    await page.setViewportSize({ width: 390, height: 800 })
    await page.getByRole('button', { name: 'Menu' }).click()
    await page.getByRole('link', { name: 'Usage' }).waitFor()
    assert.deepEqual(await visitor.tooSmallOrHigh(), [])
    assert.deepEqual(await visitor.accessibilityProblems(), [])
  })

  test('menus and dialogs are opened, used and closed with keys', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/batches/${batch.id}`)
    const menu = page.locator('summary', { hasText: 'Download' })
    await menu.focus()
    await page.keyboard.press('Enter')
    const csv = page.getByRole('link', { name: /CSV/ })
    await csv.waitFor()
    await page.keyboard.press('Tab')
    assert.ok(await csv.evaluate((element) => element === element.ownerDocument.activeElement))
    await page.keyboard.press('Escape')
    await csv.waitFor({ state: 'hidden' })
    assert.ok(await menu.evaluate((element) => element === element.ownerDocument.activeElement))
    await visitor.open('/console/limits')
    const create = page.getByRole('button', { name: 'New limit' })
    await create.focus()
    await page.keyboard.press('Enter')
    await page.getByRole('dialog').waitFor()
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    await page.keyboard.press('Escape')
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    assert.ok(await create.evaluate((element) => element === element.ownerDocument.activeElement))
    await visitor.open(`/console/batches/${batch.id}?status=failed`)
    await page.locator('tbody .row-link').first().focus()
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { level: 1, name: /^line-/ }).waitFor()
  })

  test('a file with bad lines is shown with line and column, and a good one runs', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    await page.getByRole('link', { name: 'New batch' }).first().click()
    const choose = page.locator('.drop input[type=file]')
    const text = `${JSON.stringify(line('a'))}\n{"custom_id": "b", "method": nope}\n`
    await choose.setInputFiles({
      name: 'bad.jsonl',
      mimeType: 'application/jsonl',
      buffer: Buffer.from(text),
    })
    await page.getByText('Line 2, column 31').waitFor()
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    await visitor.screenshot('bad-lines')
    await page.getByRole('button', { name: 'Another file' }).click()
    const good = Array.from({ length: 20 }, (_, i) => JSON.stringify(line(`good-${i}`))).join('\n')
    await choose.setInputFiles({
      name: 'good.jsonl',
      mimeType: 'application/jsonl',
      buffer: Buffer.from(good),
    })
    await page.getByRole('heading', { name: 'What it would cost' }).waitFor()
    await page.getByLabel('Name').fill('Twenty lines')
    await page.getByLabel('Start').fill('2001-01-01T00:00')
    await page.getByRole('button', { name: 'Create batch' }).click()
    await page.getByText('100% of 20').waitFor()
    await page.getByText('Completed').first().waitFor()
    await page.getByRole('heading', { name: 'Twenty lines', level: 1 }).waitFor()
  })

  test('a table becomes a batch with its system prompt, schema, limit and IDs, and survives a reload', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, '/console/new')
    await page.getByRole('button', { name: 'Table and prompt' }).click()
    await page.getByLabel('Rows').fill('key,city\nx-1,Oslo\nx-1,Rome')
    await page.getByLabel('Prompt', { exact: true }).fill('Greet {{city}}.')
    await page.getByLabel('System prompt').fill('Be brief about {{city}}.')
    await page.getByLabel('max_tokens').fill('33')
    await page.getByLabel('Schema of the answers').fill('{"type": "object"')
    await page.getByLabel('custom_id').selectOption('key')
    await page.getByText('The custom_id “x-1” is empty or occurs twice.').waitFor()
    await page.getByLabel('Rows').fill('key,city\nx-1,Oslo\nx-2,Rome')
    await page.getByText('The schema is not JSON.').waitFor()
    const use = page.getByRole('button', { name: 'Use 2 lines' })
    assert.ok(await use.isDisabled())
    await page.getByLabel('Schema of the answers').fill('{"type": "object"}')
    await page.getByText('Greet Rome.', { exact: true }).waitFor()
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    await visitor.screenshot('table')
    await page.setViewportSize({ width: 390, height: 800 })
    assert.deepEqual(await visitor.tooSmallOrHigh(), [])
    await use.click()
    await page.getByRole('heading', { name: 'What it would cost' }).waitFor()
    await page.getByLabel('Name').fill('Cities')
    await page.getByLabel('Completion window').selectOption('24h')
    await page.reload()
    await page.getByRole('heading', { name: 'What it would cost' }).waitFor()
    assert.equal(await page.getByLabel('Name').inputValue(), 'Cities')
    await page.getByLabel('Metadata').fill('run = nightly; note=a=b; urgent; name=Towns; entity=team:maps')
    await page.getByRole('button', { name: 'Create batch' }).click()
    await page.getByRole('heading', { name: 'Cities', level: 1 }).waitFor()
    const { data } = await service.json<List<{ id: string; name: string; metadata: object }>>(
      'GET',
      '/v1/batches?search=Cities',
    )
    assert.deepEqual(data[0]?.metadata, {
      ...{ name: 'Cities', run: 'nightly', note: 'a=b', urgent: '', entity: 'team:maps' },
    })
    const { input } = await service.json<{ input: { custom_id: string; body: unknown } }>(
      'GET',
      `/v1/batches/${data[0]?.id}/lines/2`,
    )
    assert.equal(input.custom_id, 'x-2')
    assert.deepEqual(input.body, {
      model: 'm',
      max_tokens: 33,
      messages: [
        { role: 'system', content: 'Be brief about Rome.' },
        { role: 'user', content: 'Greet Rome.' },
      ],
      response_format: {
        type: 'json_schema',
        json_schema: { name: 'answer', strict: true, schema: { type: 'object' } },
      },
    })
  })

  test('a table for which the browser has no room becomes a batch all the same', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, '/console/new?source=table')
    await page.evaluate(() => {
      let all = ''
      for (let size = 1 << 23; size > 0; size >>= 1)
        try {
          sessionStorage.setItem('other', all + ' '.repeat(size))
          all += ' '.repeat(size)
        } catch {
          // It does not fit.
        }
    })
    await page.locator('input[type=file]').setInputFiles({
      name: 'cities.csv',
      mimeType: 'text/csv',
      buffer: Buffer.from('name,city\nAda,Oslo\n'),
    })
    await page.getByRole('button', { name: 'Use 1 line' }).click()
    await page.getByRole('heading', { name: 'What it would cost' }).waitFor()
  })

  test('a batch and a retry whose answers are lost are asked for again, and created once', async () => {
    const { id: file } = await service.upload(JSON.stringify(line('lost', 'fail')))
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    visitor.expected = [0]
    const loseAnswer = (path: string): Promise<unknown> =>
      page.route(
        (url) => url.pathname.endsWith(path) && url.search === '',
        async (route) => {
          await route.fetch()
          await route.abort('connectionreset')
        },
        { times: 1 },
      )
    await visitor.signIn(operator, `/console/new?file=${file}`)
    await page.getByLabel('Name').fill('Lost answer')
    const again = async (click: () => Promise<void>): Promise<void> => {
      const lost = page.waitForEvent('requestfailed')
      await click()
      await lost
      await click()
    }
    await loseAnswer('/v1/batches')
    await again(() => page.getByRole('button', { name: 'Create batch' }).click())
    await page.getByRole('heading', { name: 'Lost answer', level: 1 }).waitFor()
    await page.getByRole('button', { name: 'Retry failed' }).first().click()
    await loseAnswer('/retry')
    await again(() => page.getByRole('dialog').getByRole('button', { name: 'Retry' }).click())
    await page.getByRole('heading', { name: 'Lost answer (retry)', level: 1 }).waitFor()
    const { data } = await service.json<List<BatchObject>>('GET', '/v1/batches?search=Lost')
    assert.deepEqual(data.map(({ name }) => name).sort(), ['Lost answer', 'Lost answer (retry)'])
  })

  test('a new batch asks again and has a webhook, and the page of a line says why it was asked again', async () => {
    upstream.reply = (call) => send(call.response, 200, completion('{"label":5}'))
    const schema = { type: 'object', properties: { label: { type: 'string' } } }
    const response_format = { type: 'json_schema', json_schema: { name: 'x', schema } }
    const { id: file } = await service.upload(JSON.stringify(line('missed', 'x', { response_format })))
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/new?file=${file}`)
    await page.getByText('Ask again, webhook, bucket').click()
    await page.getByLabel('Ask again').selectOption('Up to 1 time, the same request')
    await page.getByLabel('Webhook', { exact: true }).fill('https://hooks.invalid/one')
    await page.getByLabel('Bucket for results').fill('s3://none/')
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    visitor.expected = [403]
    await page.getByRole('button', { name: 'Create batch' }).click()
    await page.getByRole('alert').waitFor()
    await page.getByLabel('Bucket for results').fill('')
    await page.getByRole('button', { name: 'Create batch' }).click()
    await page
      .getByRole('dialog')
      .getByText(/^whsec_/)
      .waitFor()
    await page.getByRole('button', { name: 'Close' }).click()
    await page.waitForURL((url) => url.pathname.includes('/batches/batch_'))
    const id = page.url().split('/').at(-1) ?? ''
    await service.ended(id)
    upstream.reply = answer
    const { reask, reask_counts } = await service.json<BatchObject>('GET', `/v1/batches/${id}`)
    assert.deepEqual(
      [reask, reask_counts],
      [
        { max: 1, mode: 'repeat' },
        { asked: 1, missed: 1 },
      ],
    )
    await page.getByText('1 still misses').waitFor()
    await page.getByText('Up to 1 time, the same request').waitFor()
    await page.getByText('https://hooks.invalid/one').waitFor()
    await visitor.open(`/console/batches/${id}/lines/1`)
    const rows = page.getByRole('table', { name: 'Attempts' }).getByRole('row')
    await rows.nth(1).getByText('The answer missed its schema').waitFor()
    assert.equal(await rows.count(), 3)
  })

  test('a file is downloaded, used for another batch, and deleted', async () => {
    const content = `${JSON.stringify(line('again'))}\n`
    const { id } = await service.upload(content)
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    await page.getByRole('link', { name: 'Files' }).click()
    const row = page.getByRole('row').filter({ hasText: id })
    const file = page.waitForEvent('download')
    await row.getByRole('link', { name: 'input.jsonl' }).click()
    assert.equal(await readFile(await (await file).path(), 'utf8'), content)
    await row.getByRole('link', { name: 'Use again' }).click()
    await page.getByRole('button', { name: 'Create batch' }).click()
    await page.getByText('100% of 1').waitFor()
    await page.getByRole('link', { name: 'Files' }).click()
    await row.getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await row.waitFor({ state: 'detached' })
    assert.equal((await service.request('GET', `/v1/files/${id}`)).status, 404)
    await page.getByLabel('Kind').selectOption('Results')
    await page.getByRole('row').nth(1).waitFor()
    assert.match(page.url(), /purpose=batch_output/)
  })

  test('a file is run at the endpoint that its lines name', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, '/console/new')
    const body = { model: 'm', input: 'a text' }
    const text = JSON.stringify({ custom_id: 'e', method: 'POST', url: '/v1/embeddings', body })
    await page
      .locator('.drop input[type=file]')
      .setInputFiles({ name: 'texts.jsonl', mimeType: 'application/jsonl', buffer: Buffer.from(text) })
    await page.getByRole('button', { name: 'Create batch' }).click()
    await page.getByRole('heading', { name: 'texts.jsonl', level: 1 }).waitFor()
    const { endpoint } = await service.ended(page.url().split('/').at(-1) ?? '')
    assert.equal(endpoint, '/v1/embeddings')
  })

  for (const streams of [true, false])
    test(`live progress to the end ${streams ? 'over a stream' : 'where no stream gets through'}`, async () => {
      await using visitor = await Visitor.arrive(browser, service.url)
      const { page } = visitor
      if (!streams) {
        visitor.expected = [503]
        await page.route('**/v1/live', (route) =>
          route.request().resourceType() === 'eventsource'
            ? route.fulfill({ status: 503 })
            : route.continue(),
        )
      }
      await visitor.signIn(operator)
      const held = Promise.withResolvers<void>()
      upstream.reply = async (call) => {
        await held.promise
        echo(call)
      }
      const lines = Array.from({ length: 20 }, (_, i) => JSON.stringify(line(`live-${i}`)))
      const { id } = await service.create((await service.upload(lines.join('\n'))).id)
      const told = page.waitForResponse((response) => response.url().endsWith('/v1/live'))
      await visitor.open(`/console/batches/${id}`)
      await page.getByText('0% of 20').waitFor()
      await told
      held.resolve()
      upstream.reply = answer
      await page.getByText('100% of 20').waitFor()
      await page.getByText('Completed').first().waitFor()
      await page
        .getByRole('status')
        .getByText(/^Batch .* has ended: Completed$/)
        .waitFor()
    })

  test('the results are downloaded as a table', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/batches/${batch.id}`)
    await page.getByText('Download', { exact: true }).click()
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('link', { name: '61 lines (CSV)' }).click(),
    ])
    const rows = (await readFile(await download.path(), 'utf8')).split('\r\n')
    assert.equal(rows[0], '\ufeffcustom_id,answer,error,input_tokens,output_tokens,cost_usd')
    assert.equal(rows.filter((row) => row.includes(',"upstream_rejected: ')).length, 10)
    assert.equal(rows.length, 63)
    await page.getByText('Download', { exact: true }).click()
    const [parquet] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('link', { name: '61 lines (Parquet)' }).click(),
    ])
    assert.equal((await readFile(await parquet.path())).subarray(0, 4).toString(), 'PAR1')
  })

  test('results are written to a bucket, and the page says when they are there', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/batches/${batch.id}`)
    const dialog = page.getByRole('dialog')
    const write = async (url: string): Promise<void> => {
      await dialog.getByLabel('Bucket for results').fill(url)
      await dialog.getByRole('button', { name: 'Write' }).click()
    }
    await page.getByText('Download', { exact: true }).click()
    await page.getByRole('button', { name: 'Write to a bucket' }).click()
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    visitor.expected = [403, 422]
    await write('')
    await dialog.getByRole('alert').getByText('batch_not_exportable').waitFor()
    await write('s3://none/')
    await dialog.getByRole('alert').getByText('bucket_not_allowed').waitFor()
    await write(`s3://${TEST_BUCKET}/out/`)
    await dialog.waitFor({ state: 'detached' })
    await page.getByRole('definition').getByText('delivered', { exact: true }).waitFor()
    const { output_file_id } = await service.json<BatchObject>('GET', `/v1/batches/${batch.id}`)
    const content = await service.request('GET', `/v1/files/${output_file_id}/content`)
    assert.equal(s3.objects.get(`out/${batch.id}/output.jsonl`)?.bytes.toString(), await content.text())
  })

  test('what a model wrote stays text', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator, `/console/batches/${batch.id}/lines/1`)
    const answer = page.locator('.message.assistant')
    await answer.waitFor()
    const text = await answer.innerText()
    assert.ok(text.includes('<script>alert(1)</script><img src=x onerror=alert(2)>'), text)
    assert.doesNotMatch(text, /\p{Cc}(?<!\n)|\u202e/u)
    assert.equal(await answer.locator('script, img').count(), 0)
    assert.deepEqual(await answer.locator('.hidden-character').allInnerTexts(), ['001B', '001B', '202E'])
    await visitor.screenshot('hostile-answer')
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
    await page.getByRole('button', { name: 'Copy as curl' }).click()
    await page.getByRole('button', { name: 'Copied' }).waitFor()
    const copied = await page.evaluate(() => navigator.clipboard.readText())
    const { input } = await service.json<{ input: { url: string } }>('GET', `/v1/batches/${batch.id}/lines/1`)
    assert.ok(copied.startsWith(`curl "$MODEL_SERVER"'${input.url}' `), copied)
  })

  test('single requests are listed by conversation, entity and state', async () => {
    const { body } = line('x') as { body: object }
    for (const conversation of ['c1', 'c2'])
      await service.json('POST', '/v1/requests', {
        ...{ endpoint: '/v1/chat/completions', custom_id: `of ${conversation}`, body },
        metadata: { conversation, entity: 'user:9' },
      })
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    await visitor.open('/console/batches')
    await page.getByRole('link', { name: 'Single requests' }).click()
    await page.getByRole('link', { name: 'of c2' }).waitFor()
    await page.getByLabel('Entity').fill('user:9')
    await page.getByLabel('Conversation').fill('c1')
    await page.getByRole('link', { name: 'of c2' }).waitFor({ state: 'detached' })
    await page.getByRole('link', { name: 'of c1' }).click()
    await page.getByRole('heading', { name: 'of c1', level: 1 }).waitFor()
  })

  test('characters that reorder text are shown in headings, tables, details and titles', async () => {
    const name = 'user:\u202enimda\u202c'
    const { id } = await service.run([line('id-\u202e1')], { metadata: { entity: name } })
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    const shown = 'user:202Enimda202C'
    await page.getByRole('row').filter({ hasText: shown }).waitFor()
    await visitor.open(`/console/batches/${id}`)
    await page.getByRole('definition').filter({ hasText: shown }).waitFor()
    await page.getByRole('link', { name: 'id-202E1' }).click()
    await page.getByRole('heading', { name: 'id-202E1', level: 1 }).waitFor()
    assert.doesNotMatch(await page.content(), /\p{Cc}(?<![\n\t])|\u202e|\u202c/u)
    assert.doesNotMatch(await page.title(), /\u202e/u)
  })

  test('a lost connection is told on each page, and pages are read again when it is back', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    visitor.expected = [0]
    await visitor.signIn(operator)
    await visitor.settled()
    const bar = page.getByText(/^Connection lost; data from \d\d:\d\d\.$/)
    // The module of the chart cannot be loaded.
    await page.route(/\.js$|healthz/, (route) => route.abort())
    await page.getByRole('link', { name: 'Usage' }).click()
    await bar.waitFor()
    await page.unroute(/\.js$|healthz/)
    await bar.waitFor({ state: 'detached' })
    await page.locator('.uplot').waitFor()
    await page.context().setOffline(true)
    await page.getByRole('link', { name: 'Keys' }).click()
    await bar.waitFor()
    await page.getByRole('link', { name: 'Usage' }).click()
    await page.getByRole('heading', { name: 'Usage', level: 1 }).waitFor()
    await bar.waitFor()
    await page.context().setOffline(false)
    await bar.waitFor({ state: 'detached' })
    await page.getByRole('table').first().waitFor()
  })

  test('model servers are as the service says that they are', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    await visitor.signIn(operator, '/console/servers')
    const row = visitor.page.getByRole('table', { name: 'Model servers' }).getByRole('row').nth(1)
    await row.getByText('Healthy', { exact: true }).waitFor()
    const { service: all } = await service.json<ServiceStatus>('GET', '/v1/status')
    assert.equal(all?.workers[0]?.upstreams[0]?.reachable, true)
  })

  test('a line that was never sent is not run', async () => {
    const file = await service.upload(JSON.stringify(line('never')))
    const { id } = await service.create(file.id, { start_after: Math.floor(Date.now() / 1000) + 3_600 })
    await service.request('POST', `/v1/batches/${id}/cancel`)
    await service.ended(id)
    await using visitor = await Visitor.arrive(browser, service.url)
    await visitor.signIn(operator, `/console/batches/${id}`)
    const row = visitor.page.getByRole('table', { name: 'Lines' }).getByRole('row').nth(1)
    await row.getByText('Not run', { exact: true }).waitFor()
    const figure = (title: string) =>
      visitor.page.locator('.figure').filter({ hasText: title }).getByRole('definition').innerText()
    await visitor.page.getByText('1 not run').waitFor()
    assert.equal(await figure('Not run'), '1\n100% of 1')
    assert.equal(await figure('Finished'), '0\n0% of 1')
    assert.equal(await figure('Failed'), '0')
    await visitor.open('/console/batches')
    const listed = visitor.page.getByRole('row').filter({ has: visitor.page.locator(`[href$="${id}"]`) })
    assert.match(await listed.innerText(), /0\s*\/ 1\s*0%\s+0\s+1 not run/)
  })

  test('batches are sorted by the headings, as the service sorts them, and Back comes back to that', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    const shown = async (): Promise<(string | null)[]> =>
      (await page.getByRole('row').locator('.row-link').all())
        .slice(0, 15)
        .reduce(
          async (rows: Promise<(string | null)[]>, link) => [
            ...(await rows),
            await link.getAttribute('href'),
          ],
          Promise.resolve([]),
        )
    for (const [heading, query, sorted] of [
      ['Cost', 'sort=cost', 'descending'],
      ['Cost', 'sort=cost&order=asc', 'ascending'],
      ['Batch', 'sort=name&order=asc', 'ascending'],
      ['Failed', 'sort=failed', 'descending'],
      ['Speed', 'sort=speed', 'descending'],
      ['Deadline', 'sort=deadline', 'descending'],
    ] as const) {
      await page.getByRole('columnheader').getByRole('button', { name: heading }).click()
      await page.waitForURL((url) => url.search === `?${query}`)
      await page.locator(`[aria-sort=${sorted}]`).getByText(heading).waitFor()
      const { data } = await service.json<List<WireBatch>>('GET', `/v1/batches?${query}&limit=15`)
      const expected = data.map(({ id }) => `/console/batches/${id}`)
      for (let tries = 0; tries < 50 && (await shown()).join() !== expected.join(); tries++)
        await page.evaluate('new Promise(requestAnimationFrame)')
      assert.deepEqual(await shown(), expected, query)
    }
    await page.getByRole('row').locator('.row-link').first().click()
    await page.waitForURL((url) => url.pathname.includes('/batches/'))
    await page.goBack()
    await page.locator('[aria-sort=descending]').getByText('Deadline').waitFor()
    assert.deepEqual(await visitor.accessibilityProblems(), [])
    assert.equal(await page.getByLabel('Sort by').isVisible(), false)
    await page.setViewportSize({ width: 390, height: 800 })
    await page.getByLabel('Sort by').selectOption('Cost')
    await page.waitForURL((url) => url.search === '?sort=cost')
    await page.getByRole('button', { name: 'Turn round' }).click()
    await page.waitForURL((url) => url.search === '?sort=cost&order=asc')
    const { data } = await service.json<List<WireBatch>>('GET', '/v1/batches?sort=cost&order=asc&limit=50')
    await page
      .locator('.row-link')
      .first()
      .and(page.locator(`[href$="${data[0]?.id}"]`))
      .waitFor()
  })

  test('a long list is read as it is scrolled, and Back comes back to the place', async () => {
    const { store } = service.stores
    const ids = Array.from({ length: 400 }, () => newId('batch', store.clock.now()))
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    const scroll = () => page.evaluate(() => scrollY)
    // The copies have no lines.
    visitor.expected = [404]
    try {
      await store.write(async (tx) => {
        const row = await tx.selectFrom('batches').selectAll().where('id', '=', batch.id).executeTakeFirst()
        for (const id of ids)
          if (row)
            await tx
              .insertInto('batches')
              .values({ ...row, id })
              .execute()
      })
      await visitor.signIn(operator)
      const rows = page.locator('tbody [role=row]')
      const link = (id: string) => page.locator(`.row-link[href$="${id}"]`)
      await rows.nth(10).waitFor()
      // Its end moves while it is read.
      for (let tries = 0; tries < 50 && !(await link(structured.id).isVisible()); tries++) {
        await page.keyboard.press('End')
        await page.evaluate('new Promise(requestAnimationFrame)')
      }
      await link(structured.id).waitFor()
      assert.ok((await rows.count()) < 60, 'only rows in sight are in the page')
      assert.ok(Number(await rows.last().getAttribute('aria-rowindex')) > ids.length)
      assert.deepEqual(await visitor.accessibilityProblems(), [])
      const height = (await rows.nth(5).boundingBox())?.height ?? 0
      const place = Math.round(250 * height)
      await rows.last().locator('.row-link').focus()
      await page.evaluate((place) => scrollTo(0, place), place)
      await page.waitForFunction(() => document.activeElement === document.body)
      const chosen = page.locator(`.row-link[href$="${ids.toReversed()[250]}"]`)
      await chosen.click()
      await page.waitForURL((url) => url.pathname.includes('/batches/'))
      assert.equal(await scroll(), 0)
      for (const come of ['goBack', 'reload'] as const) {
        await page[come]()
        await page.waitForFunction((place) => scrollY === place, place)
        await chosen.waitFor()
      }
    } finally {
      await store.write((tx) => tx.deleteFrom('batches').where('id', 'in', ids).execute())
    }
  })

  test('a limit is made, and its gauge shows what was spent', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    await page.getByRole('link', { name: 'Limits' }).click()
    await page.getByRole('button', { name: 'New limit' }).click()
    await page.getByLabel('Entity', { exact: true }).fill('user:42')
    await page.getByLabel('Amount').fill('25')
    await page.getByRole('button', { name: 'Save' }).click()
    await page.getByRole('heading', { name: 'user:42' }).waitFor()
    await page.getByText('$25.00 a month').waitFor()
    assert.equal(await page.getByRole('meter').getAttribute('aria-valuemax'), '25')
    const month = new Date().toISOString().slice(0, 8)
    const path = `/v1/usage/entities?entity=user:42&start=${month}01`
    const { total_tokens } = await service.json<UsageObject>('GET', path)
    const cap = { scope: 'entity', entity: 'user:42', metric: 'tokens', window: 'month', action: 'notify' }
    await service.json('POST', '/v1/limits', { ...cap, amount: 100 })
    await page.reload()
    assert.ok(total_tokens > 200)
    await page
      .getByText(new Intl.NumberFormat('en', { style: 'percent' }).format(total_tokens / 100))
      .waitFor()
    const key = { scope: 'project', metric: 'requests', window: 'week', action: 'notify' }
    const { id } = await service.json<{ id: string }>('POST', '/v1/limits', {
      ...{ ...key, amount: 9, notify_at: [0.07, 0.55] },
    })
    await visitor.open(`/console/limits?change=${id}`)
    assert.equal(await page.getByLabel('Notify at, in percent').inputValue(), '7, 55')
  })

  test('a key is issued, shown once, and revoked', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    await page.getByRole('link', { name: 'Keys' }).click()
    await page.getByRole('button', { name: 'New key' }).click()
    await page.getByLabel('Name').fill('from the console')
    await page.getByRole('button', { name: 'Create key' }).click()
    const key = await page
      .getByRole('dialog')
      .getByText(/^opk_local_/)
      .innerText()
    assert.equal(
      (await fetch(`${service.url}/v1/models`, { headers: { authorization: `Bearer ${key}` } })).status,
      200,
    )
    await page.getByRole('button', { name: 'Close' }).click()
    const row = page.getByRole('row').filter({ hasText: 'from the console' })
    await row.getByRole('button', { name: 'Revoke' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click()
    await row.getByText('Revoked').waitFor()
    assert.equal(
      (await fetch(`${service.url}/v1/models`, { headers: { authorization: `Bearer ${key}` } })).status,
      401,
    )
  })

  test('calls that only read are left out of the audit until they are asked for, and days are filters', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    const first = page.getByRole('table', { name: 'Calls' }).getByRole('row').nth(1)
    await page.getByRole('link', { name: 'Audit' }).click()
    await first.getByText(/^(POST|DELETE) /).waitFor()
    const rows = page.getByRole('table', { name: 'Calls' }).getByRole('row')
    for (const text of (await rows.allInnerTexts()).slice(1)) assert.match(text, /\n(POST|DELETE) /)
    await page.getByLabel('Method').selectOption('All')
    await first.getByText(/^GET /).waitFor()
    await page.getByLabel('Method').selectOption('All but reads')
    await page.getByLabel('To', { exact: true }).fill('2020-01-31')
    await page.getByText('Nothing found').waitFor()
    await page.getByLabel('To', { exact: true }).fill('')
    await page.getByLabel('From').fill('2026-01-01')
    const { data: keys } = await service.json<List<ApiKeyObject>>('GET', '/v1/keys?limit=100')
    await page
      .getByLabel('Key')
      .selectOption(keys.find(({ last_used_at }) => last_used_at === null)?.id ?? '')
    await page.getByText('Nothing found').waitFor()
  })

  test('usage is by day, week or month, of any days, and entities lead to it', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    const usage = await service.json<UsageObject>('GET', '/v1/usage/entities?entity=user:42&group_by=day')
    await visitor.open(`/console/batches/${batch.id}`)
    await page.getByRole('link', { name: 'user:42' }).click()
    const lines = page.locator('.figure').filter({ hasText: 'Lines' }).getByRole('definition')
    await lines.getByText(String(usage.lines), { exact: false }).waitFor()
    // Costs of so few lines have five decimals.
    const axis = await page.locator('.u-axis').nth(1).boundingBox()
    assert.ok((axis?.width ?? 0) > 58, `${axis?.width} pixels for the costs beside the chart`)
    await page.getByLabel('By', { exact: true }).selectOption('Time')
    const cell = page.getByRole('table', { name: 'Usage' }).getByRole('cell').first()
    const [day = ''] = usage.groups?.map((group) => group.day) ?? []
    await cell.getByText(day, { exact: true }).waitFor()
    await page.getByLabel('Interval').selectOption('Month')
    await cell.getByText(`${day.slice(0, 8)}01`, { exact: true }).waitFor()
    await page.getByLabel('Time', { exact: true }).selectOption('These days')
    await page.getByLabel('To', { exact: true }).fill('2020-01-31')
    await page.getByLabel('From').fill('2020-01-01')
    await page.getByText('Nothing used in this time').waitFor()
    await page.getByRole('button', { name: 'user:42' }).click()
    assert.doesNotMatch(page.url(), /entity=/)
    // A day that there is not counts as none.
    await visitor.open('/console/usage?range=days&since=2026-13-01')
    await page.getByLabel('From').waitFor()
    // The last month may be shorter than this one.
    await page.clock.setFixedTime('2026-03-30T12:00:00Z')
    const before = page.waitForRequest((request) => request.url().includes('start=2026-02-01'))
    await visitor.open('/console/usage')
    assert.match((await before).url(), /end=2026-03-01/)
  })

  test('pages of operators are hidden from tenants', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(tenant)
    assert.equal(await page.getByRole('link', { name: 'Servers' }).count(), 0)
    await visitor.open('/console/servers')
    await page.getByText('Not for this key').waitFor()
  })

  test('the page speaks German where the reader does', async () => {
    const context = await browser.newContext({ locale: 'de-DE' })
    const page = await context.newPage()
    await page.goto(`${service.url}/console`)
    await page.getByRole('button', { name: 'Anmelden' }).waitFor()
    assert.equal(await page.locator('html').getAttribute('lang'), 'de')
    await context.close()
  })

  test('why a batch waits and what to do about errors is in the words and the time of the reader', async () => {
    const file = await service.upload(JSON.stringify(line('later')))
    const { id } = await service.create(file.id, { start_after: Math.floor(Date.now() / 1000) + 3_600 })
    const context = await browser.newContext({ locale: 'de-DE', timezoneId: 'Asia/Tokyo' })
    const page = await context.newPage()
    await page.goto(`${service.url}/console/batches/${id}`)
    await page.locator('input[type=password]').fill(operator)
    await page.locator('button[type=submit]').click()
    const { waiting_reason } = (await service.get(id)) as { waiting_reason?: { until: number } }
    const at = new Intl.DateTimeFormat('de-DE', {
      ...{ month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit' },
      timeZone: 'Asia/Tokyo',
    } as const).format((waiting_reason?.until ?? 0) * 1000)
    await page.getByText(`Er beginnt am ${at}.`).waitFor()
    await page.goto(`${service.url}/console/batches/${batch.id}`)
    const advice = page.getByText(/^Korrigieren Sie .* der Zeile; die Meldung enthält/)
    await advice.locator('code', { hasText: 'body' }).waitFor()
    await context.close()
    await service.request('POST', `/v1/batches/${id}/cancel`)
  })

  test('every key of a project is listed, however many there are', async () => {
    const { store } = service.stores
    const made: { id: string; key: string }[] = []
    for (let i = 0; i < 110; i++)
      made.push(await createKey(store, store.clock, service.config.region, { project: 'many', plan: 'payg' }))
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(made[0]!.key, '/console/keys')
    await page.getByText(made.at(-1)!.id).waitFor()
    await page.evaluate(() => scrollTo(0, 1e6))
    await page.locator('table[aria-rowcount="111"]').waitFor()
    await page.evaluate(() => scrollTo(0, 1e6))
    await page.getByText(made[0]!.id).waitFor()
  })

  test('every limit of a project can be seen and changed, however many there are', async () => {
    const { store } = service.stores
    const order = { project: 'capped', plan: 'payg' }
    const { key } = await createKey(store, store.clock, service.config.region, order)
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
    const call = async (method: string, path: string, body?: object): Promise<LimitObject> => {
      const response = await fetch(service.url + path, { method, headers, body: JSON.stringify(body) })
      return (await response.json()) as LimitObject
    }
    const made: string[] = []
    for (let i = 0; i <= 100; i++) {
      const cap = { scope: 'entity', entity: `user:${i}`, metric: 'cost_usd', window: 'month', amount: 1 }
      made.push((await call('POST', '/v1/limits', cap)).id)
    }
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(key, '/console/limits')
    await page.getByRole('button', { name: 'Show more' }).click()
    const oldest = page.getByRole('listitem').filter({ has: page.getByText('user:0', { exact: true }) })
    await oldest.getByRole('button', { name: 'Change' }).click()
    await page.getByLabel('Amount').fill('7')
    await page.getByRole('button', { name: 'Save' }).click()
    await oldest.getByText('$7.00').first().waitFor()
    assert.equal((await call('GET', `/v1/limits/${made[0]}`)).amount, 7)
  })

  test('every model can be chosen, however many there are', async () => {
    const ids = Array.from({ length: 120 }, (_, i) => `m${i}`)
    const models = ids.map((id) => `  - {id: ${id}, upstreams: [{type: sim}]}`).join('\n')
    const config = configFor(upstream.base_url).replace('models:', `models:\n${models}`)
    await using many = await TestService.start(config, { worker: false })
    await using visitor = await Visitor.arrive(browser, many.url)
    await visitor.signIn(many.key, '/console/new')
    await visitor.page.getByRole('button', { name: 'Table' }).click()
    const options = visitor.page.getByLabel('Model', { exact: true }).locator('option')
    assert.deepEqual((await options.allInnerTexts()).sort(), [...ids, 'm'].sort())
  })

  test('a project with more entities than a report has is searched, and told what is broken', async (t) => {
    const { store } = service.stores
    const order = { project: 'crowded', plan: 'payg' }
    const { key, project_id } = await createKey(store, store.clock, service.config.region, order)
    // In the end the books of the service are to balance.
    t.after(() =>
      store.write((tx) => tx.deleteFrom('usage_days').where('project_id', '=', project_id).execute()),
    )
    const counts = { ...recordOf(DAY_SUMS, () => 0), succeeded: 1, cost_nanos: 1 }
    const day = dayOf(store.clock.now())
    for (let first = 0; first <= 10_000; first += 500) {
      const rows = Array.from({ length: 500 }, (_, i) => ({
        ...{ project_id, entity: `user:${first + i}`, entity_type: 'user', day, model: 'm', key_id: '' },
        ...counts,
      }))
      await store.write((tx) => addUsage(tx, rows))
    }
    await using visitor = await Visitor.arrive(browser, service.url)
    visitor.expected = [400]
    const { page } = visitor
    await visitor.signIn(key, '/console/overview')
    await page.getByText('too many groups').waitFor()
    await page.getByText('This key cannot see').waitFor()
    await page.keyboard.press('Control+k')
    await page.getByRole('dialog').getByRole('searchbox').fill('user:7777')
    await page.getByRole('link', { name: 'user:7777' }).waitFor()
  })
})
