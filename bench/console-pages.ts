// The console in a real Chromium: how soon its first page can be used with nothing cached, and how many frames a second
// the browser of a batch's lines draws while it is scrolled, with how many rows in the page.
//
//   node bench/console-pages.ts [--lines 100000] [--rounds 7] [--seconds 5]
import type { Browser, Page } from 'playwright-core'
import { launchChromium } from '../test/console/chromium.ts'
import { Bench, median, modelAt, option, runBatch } from './harness.ts'

/** What runs in the page sees the page's. */
declare const document: {
  querySelector: (selector: string) => Scroller | null
  querySelectorAll: (selector: string) => { length: number }
}
declare const requestAnimationFrame: (frame: (at: number) => void) => void
interface Scroller {
  scrollTop: number
  scrollHeight: number
}

const lines = option('lines', 100_000)
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
const scrolled = await scroll(browser, cookie, id, seconds)

console.table(scrolled)
bench.figure('the first page after the start, ms', first)
bench.figure('sign-in page, nothing cached, ms', median(rest))
bench.figure('list of batches, nothing cached, ms', median(listed), { atMost: 300 })
bench.figure('frames a second while lines are scrolled', scrolled.frames_per_s, { atLeast: 50 })

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

interface Scrolled {
  rows_in_page: number
  frames_per_s: number
  frame_p99_ms: number
}

/** 40 rows a frame, as a wheel that is turned fast; frames are counted by the page. */
async function scroll(browser: Browser, cookie: string, id: string, seconds: number): Promise<Scrolled> {
  await using context = await browser.newContext({ viewport: { width: 1280, height: 900 } })
  await context.addCookies([{ name: 'offpeak_console', value: cookie, url: service.url }])
  const page: Page = await context.newPage()
  await page.goto(`${service.url}/console/batches/${id}`)
  await page.waitForSelector('.lines-scroll .row-link')
  return await page.evaluate(async (seconds) => {
    const scroller = document.querySelector('.lines-scroll')
    if (!scroller) throw new Error('there are no lines')
    const times: number[] = []
    let rows = 0
    await new Promise<void>((resolve) => {
      const frame = (at: number): void => {
        times.push(at)
        rows = Math.max(rows, document.querySelectorAll('.lines-scroll [role=row]').length)
        scroller.scrollTop = (scroller.scrollTop + 1520) % scroller.scrollHeight
        if (at - (times[0] ?? at) < seconds * 1000) requestAnimationFrame(frame)
        else resolve()
      }
      requestAnimationFrame(frame)
    })
    const gaps = times
      .slice(1)
      .map((at, i) => at - (times[i] ?? at))
      .sort((a, b) => a - b)
    const took = (times.at(-1) ?? 0) - (times[0] ?? 0)
    return {
      rows_in_page: rows,
      frames_per_s: Math.round((gaps.length / took) * 10_000) / 10,
      frame_p99_ms: Math.round((gaps[Math.floor(gaps.length * 0.99)] ?? 0) * 10) / 10,
    }
  }, seconds)
}
