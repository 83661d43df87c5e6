// Every page of the console in a real Chromium: whether people can use it, what it weighs, and that its numbers are those of
// the API.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Browser } from 'playwright-core'
import type { BatchEstimate, BatchObject } from '../../src/wire/batch.ts'
import type { BatchLine } from '../../src/wire/batch-line.ts'
import type { FileObject } from '../../src/wire/file.ts'
import type { ApiKeyObject, QuotasObject } from '../../src/wire/project.ts'
import type { List } from '../../src/wire/shape.ts'
import type { ServiceStatus, Settings } from '../../src/wire/status.ts'
import type { UsageHours, UsageObject } from '../../src/wire/usage.ts'
import type { TestService, WireBatch } from '../service.ts'
import { Visitor, withoutBrowser } from './chromium.ts'
import { type ConsoleWorld, consoleWorld, lineRequest, PAGES } from './console-world.ts'

/** What runs in the page sees the page's. */
declare const document: { documentElement: { scrollWidth: number } }
declare const innerWidth: number

describe('every page of the console', { skip: withoutBrowser }, () => {
  let world: ConsoleWorld
  let browser: Browser
  let service: TestService
  let operator: string
  let batch: WireBatch
  let structured: WireBatch

  before(async () => {
    world = await consoleWorld()
    ;({ browser, service, operator, batch, structured } = world)
  })

  after(() => world?.[Symbol.asyncDispose]())

  // Nothing but its colours depends on the scheme, and no colour on the language.
  for (const [scheme, locale] of [
    ['light', 'en-GB'],
    ['dark', 'de-DE'],
  ] as const)
    test(`every page is accessible in ${locale} and ${scheme} colours, and fits into a phone`, async () => {
      await using visitor = await Visitor.arrive(browser, service.url, scheme, locale)
      await visitor.signIn(operator)
      for (const path of [
        ...PAGES,
        `/batches/${batch.id}`,
        `/batches/${batch.id}/lines/2`,
        `/audit/${lineRequest(batch.id)}`,
      ]) {
        await visitor.page.setViewportSize({ width: 1280, height: 900 })
        await visitor.open(`/console${path}`)
        await visitor.settled()
        assert.deepEqual(await visitor.accessibilityProblems(), [], path)
        const words = await visitor.page.locator('main').evaluate((main) => {
          const copy = main.cloneNode(true) as typeof main
          for (const code of copy.querySelectorAll('pre, textarea')) code.remove()
          return copy.textContent ?? ''
        })
        assert.doesNotMatch(words, /`|\d{4}-\d\d-\d\dT\d\d/, path)
        const name = path
          .slice(1)
          .replace(/(batch|req)_[^/]*/, '$1')
          .replaceAll('/', '-')
        await visitor.screenshot(`${name}-${scheme}`)
        await visitor.page.setViewportSize({ width: 390, height: 800 })
        assert.deepEqual(await visitor.tooSmallOrHigh(), [], path)
        for (const width of [1920, 1024, 768, 360]) {
          await visitor.page.setViewportSize({ width, height: 800 })
          const beyond = await visitor.page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
          assert.ok(beyond <= 0, `${path} is ${beyond} pixels wider than a window of ${width}`)
          assert.deepEqual(await visitor.cutOffTables(), [], `${path} in a window of ${width}`)
        }
        await visitor.screenshot(`${name}-${scheme}-small`)
      }
    })

  test('every control of every page is reached with the tabulator key', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    await visitor.signIn(operator)
    for (const path of [...PAGES, `/batches/${structured.id}`, `/batches/${batch.id}/lines/2`]) {
      await visitor.open(`/console${path}`)
      await visitor.settled()
      assert.deepEqual(await visitor.unreachableByKeyboard(), [], path)
    }
  })

  test('numbers on pages are those of the API', async () => {
    await using visitor = await Visitor.arrive(browser, service.url)
    const { page } = visitor
    await visitor.signIn(operator)
    const whole = new Intl.NumberFormat('en-GB')
    const figure = (title: string) =>
      page.locator('.figure').filter({ hasText: title }).getByRole('definition').first()
    const exactly = async (title: string): Promise<number> =>
      Number((await figure(title).getAttribute('title'))?.replace(/[^0-9.]/g, ''))
    const rowsOf = (name: string) => page.getByRole('table', { name }).getByRole('row')

    await visitor.open('/console/overview')
    await visitor.settled()
    const { hours } = await service.json<UsageHours>('GET', '/v1/usage/hours')
    const total = (of: (hour: UsageHours['hours'][number]) => number): number =>
      hours.reduce((sum, hour) => sum + of(hour), 0)
    const ran = total(({ completed, failed, not_run }) => completed + failed - not_run)
    const picture = page.locator('.card').filter({ has: page.getByRole('img', { name: 'Lines per second' }) })
    const exact = (title: string) =>
      picture.locator('.figure').filter({ hasText: title }).getByRole('definition').getAttribute('title')
    assert.ok(ran > 300)
    assert.equal(await exact('Lines'), whole.format(ran))
    assert.equal(
      await exact('Tokens'),
      whole.format(total((hour) => hour.prompt_tokens + hour.completion_tokens)),
    )
    const cost = (await exact('Cost'))?.replace(/[^0-9.]/g, '')
    assert.equal(Number(cost).toFixed(9), total(({ cost_usd }) => cost_usd).toFixed(9))
    await page.getByRole('button', { name: 'Cost per hour' }).click()
    await page.getByRole('img', { name: 'Cost per hour' }).waitFor()

    await visitor.open(`/console/batches/${batch.id}`)
    const {
      request_counts: counts,
      cost_usd,
      usage,
    } = await service.json<BatchObject>('GET', `/v1/batches/${batch.id}`)
    assert.match(await figure('Finished').innerText(), new RegExp(`^${counts.completed + counts.failed}\\b`))
    assert.match(await figure('Failed').innerText(), new RegExp(`^${counts.failed}\\b`))
    assert.equal(await exactly('Cost'), cost_usd)

    await visitor.open(`/console/batches/${batch.id}/lines/2`)
    const one = await service.json<BatchLine>('GET', `/v1/batches/${batch.id}/lines/2`)
    assert.match(await figure('Attempts').innerText(), new RegExp(`^${one.attempts}$`))
    const attempts = rowsOf('Attempts')
    await attempts.nth(1).waitFor()
    assert.equal((await attempts.count()) - 1, one.attempts)

    await visitor.open(`/console/usage?entity=user:42`)
    const used = await service.json<UsageObject>('GET', '/v1/usage/entities?entity=user:42')
    assert.ok(used.total_tokens >= (usage?.total_tokens ?? 0))
    assert.equal(await exactly('Cost'), used.cost_usd)
    await page.getByText(`${used.failed} failed`, { exact: false }).first().waitFor()

    await visitor.open('/console/files')
    const { data: files } = await service.json<List<FileObject>>('GET', '/v1/files?purpose=batch&limit=50')
    await rowsOf('Files').nth(1).waitFor()
    const told = await rowsOf('Files').allInnerTexts()
    assert.ok(told.length > Math.min(files.length, 12))
    for (const [i, { id, filename, line_count }] of files.slice(0, told.length - 1).entries())
      for (const text of [id, filename, whole.format(line_count)])
        assert.ok(told[i + 1]?.includes(text), text)

    await visitor.open('/console/keys')
    const { data: keys } = await service.json<List<ApiKeyObject>>('GET', '/v1/keys?limit=100')
    await rowsOf('Keys').nth(1).waitFor()
    assert.deepEqual(
      (await rowsOf('Keys').allInnerTexts()).slice(1).map((text) => /key_\w+/.exec(text)?.[0]),
      keys.map(({ id }) => id),
    )

    await visitor.open('/console/servers')
    const { service: state } = await service.json<ServiceStatus>('GET', '/v1/status')
    await rowsOf('Model servers').nth(1).waitFor()
    const server = state?.workers[0]?.upstreams[0]
    const shown = (await rowsOf('Model servers').nth(1).innerText()).replace(/\s+/g, ' ')
    assert.ok(shown.includes(`${server?.in_flight} / ${server?.concurrency}`), shown)

    await visitor.open('/console/settings')
    const { quotas } = await service.json<QuotasObject>('GET', '/v1/quotas')
    await rowsOf('Quotas').nth(1).waitFor()
    assert.equal((await rowsOf('Quotas').count()) - 1, Object.keys(quotas).length)
    const { version, configuration } = await service.json<Settings>('GET', '/v1/settings')
    await page.getByText(version, { exact: true }).waitFor()
    assert.deepEqual(
      JSON.parse(await page.getByRole('region', { name: 'Configuration' }).innerText()),
      configuration,
    )

    const request = lineRequest(batch.id).replace(/1$/, '2')
    await visitor.open(`/console/audit/${request}`)
    assert.deepEqual(
      JSON.parse(await page.getByRole('region', { name: 'Record' }).innerText()),
      await service.json('GET', `/v1/requests/${request}`),
    )

    const { input_file_id } = batch
    await visitor.open(`/console/new?file=${input_file_id}`)
    const order = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    const { cost_usd: most, estimated_completion: at } = await service.json<BatchEstimate>(
      'POST',
      '/v1/batches?dry_run=true',
      order,
    )
    await figure('At most').waitFor()
    assert.equal(await exactly('At most'), most)
    assert.ok(at != null && at < Date.now() / 1000 + 60)
    assert.match(await figure('Expected').innerText(), /left$/)
  })

  test('all that a page loads is at most 96 KB, compressed', async (t) => {
    for (const path of ['/overview', '/batches', `/batches/${batch.id}`, '/usage', '/keys']) {
      await using visitor = await Visitor.arrive(browser, service.url)
      await visitor.signIn(operator)
      let bytes = 0
      visitor.page.on('response', (response) => {
        if (new URL(response.url()).pathname.startsWith('/console'))
          bytes += Number(response.headers()['content-length'] ?? 0)
      })
      const debug = await visitor.page.context().newCDPSession(visitor.page)
      await debug.send('Network.setCacheDisabled', { cacheDisabled: true })
      await visitor.open(`/console${path}`)
      await visitor.settled()
      // A batch that ended within a second has its states, and no chart.
      if (!['/overview', '/batches', '/keys'].includes(path))
        await visitor.page.locator('.uplot, .card.stack').first().waitFor()
      t.diagnostic(`${path.split('_')[0]}: ${(bytes / 1000).toFixed(1)} KB`)
      assert.ok(bytes > 15_000 && bytes <= 96_000, `${path}: ${bytes} bytes`)
    }
  })
})
