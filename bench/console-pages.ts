// The console in a real Chromium: how soon its first page can be used with nothing cached, and how many frames a second
// the lines of a batch, and the list of batches with all that it reads, draw while they are scrolled.
//
//   node bench/console-pages.ts [--lines 100000] [--batches 10000] [--rounds 7] [--seconds 5]
import { join } from 'node:path'
import type { Browser } from 'playwright-core'
import { newId } from '../src/domain/ids.ts'
import { sqliteStore } from '../src/store/sqlite/store.ts'
import { launchChromium } from '../test/console/chromium.ts'
import { Bench, median, modelAt, option, runBatch } from './harness.ts'

/** The parts of the page's elements that code which runs in the page reads. */
interface PageElement {
  scrollHeight: number
  getAttribute: (name: string) => string | null
}
declare const document: {
  documentElement: PageElement
  querySelector: (selector: string) => PageElement | null
  querySelectorAll: (selector: string) => { length: number }
}
declare const innerHeight: number
declare const scrollY: number
declare const scrollTo: (x: number, y: number) => void
declare const requestAnimationFrame: (frame: (at: number) => void) => void

const lines = option('lines', 100_000)
const batches = option('batches', 10_000)
const rounds = option('rounds', 7)
const seconds = option('seconds', 5)
await using bench = new Bench('console-pages')
const service = await bench.service(modelAt(await bench.upstream()))
const browser = await launchChromium()
bench.defer(() => browser.close())
const signIn = '.sign-in input'
const first = await firstPage(browser, null, signIn)
const rest: number[] = []
for (let i = 0; i < rounds; i++) rest.push(await firstPage(browser, null, signIn))

const file = await service.client.upload(await bench.lines(lines, 300), 50)
const { id } = await runBatch(service, file, { askMs: 200 })
const cookie = await signedIn(service.url, service.key)
const listed: number[] = []
for (let i = 0; i < rounds; i++) listed.push(await firstPage(browser, cookie, '.table tbody .row-link'))
const ofLines = await scroll(browser, cookie, `batches/${id}`, seconds)
await copyBatch(service.data, id, batches)
const ofBatches = await scroll(browser, cookie, 'batches', Number.POSITIVE_INFINITY)

console.table({ lines: ofLines, batches: ofBatches })
bench.figure('the first page after the start, ms', first)
bench.figure('sign-in page, nothing cached, ms', median(rest))
bench.figure('list of batches, nothing cached, ms', median(listed), { atMost: 300 })
bench.figure('frames a second while lines are scrolled', ofLines.frames_per_s, { atLeast: 50 })
bench.figure(`frames a second while ${batches} batches are`, ofBatches.frames_per_s, { atLeast: 50 })

/** Milliseconds from the navigation until `selector` is in the page, in a browser that has seen nothing yet. */
async function firstPage(browser: Browser, cookie: string | null, selector: string): Promise<number> {
  await using context = await browser.newContext()
  if (cookie !== null)
    await context.addCookies([{ name: 'offpeak_console', value: cookie, url: service.url }])
  const page = await context.newPage()
  // In the page's own time: the debugger takes as long as the page itself.
  await page.addInitScript((selector) => {
    const look = (): void => {
      if (document.querySelector(selector)) Object.assign(globalThis, { usableAt: performance.now() })
      else requestAnimationFrame(look)
    }
    look()
  }, selector)
  await page.goto(`${service.url}/console`)
  await page.waitForFunction(() => 'usableAt' in globalThis)
  return Math.round(await page.evaluate(() => Number(Reflect.get(globalThis, 'usableAt'))))
}

async function signedIn(url: string, api_key: string): Promise<string> {
  const response = await fetch(`${url}/console/session`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-offpeak-console': '1' },
    body: JSON.stringify({ api_key }),
  })
  return /offpeak_console=([^;]+)/.exec(response.headers.get('set-cookie') ?? '')?.[1] ?? ''
}

/** Makes batches like this one, in the database itself. */
async function copyBatch(data: string, id: string, count: number): Promise<void> {
  const store = sqliteStore({ path: join(data, 'offpeak.db') })
  await store.write(async (tx) => {
    const row = await tx.selectFrom('batches').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
    for (let i = 0; i < count; i++)
      await tx
        .insertInto('batches')
        .values({ ...row, id: newId('batch', row.created + i) })
        .execute()
  })
  await store.close()
}

interface Scrolled {
  rows_in_page: number
  frames_per_s: number
  frame_p99_ms: number
  seconds: number
}

/** 1,000 pixels a frame, so that each row is read and drawn, for so long or to the end; frames are counted by the page. */
async function scroll(browser: Browser, cookie: string, path: string, seconds: number): Promise<Scrolled> {
  await using context = await browser.newContext({ viewport: { width: 1280, height: 900 } })
  await context.addCookies([{ name: 'offpeak_console', value: cookie, url: service.url }])
  const page = await context.newPage()
  await page.goto(`${service.url}/console/${path}`)
  await page.waitForSelector('.long .row-link')
  return await page.evaluate(async (seconds) => {
    const times: number[] = []
    let rows = 0
    await new Promise<void>((resolve) => {
      const frame = (at: number): void => {
        times.push(at)
        rows = Math.max(rows, document.querySelectorAll('.long tbody [role=row]').length)
        const isWhole = document.querySelector('.long table')?.getAttribute('aria-rowcount') !== '-1'
        const isAtEnd = isWhole && scrollY >= document.documentElement.scrollHeight - innerHeight - 1
        if (isAtEnd ? seconds === Infinity : at - (times[0] ?? at) >= seconds * 1000) resolve()
        else {
          scrollTo(0, isAtEnd ? 0 : scrollY + 1000)
          requestAnimationFrame(frame)
        }
      }
      requestAnimationFrame(frame)
    })
    const gaps = times
      .slice(1)
      .map((at, i) => at - (times[i] ?? at))
      .sort((a, b) => a - b)
    const took = (times.at(-1) ?? 0) - (times[0] ?? 0)
    const tenth = (value: number): number => Math.round(value * 10) / 10
    return {
      rows_in_page: rows,
      frames_per_s: tenth((gaps.length / took) * 1000),
      frame_p99_ms: tenth(gaps[Math.floor(gaps.length * 0.99)] ?? 0),
      seconds: tenth(took / 1000),
    }
  }, seconds)
}
