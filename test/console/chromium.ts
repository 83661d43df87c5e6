// A real Chromium before a real service. Every page is watched: an error in its console, a violation of its policy or
// a request beyond the service fails the test that opened it.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdir, readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core'

/** What runs in the page sees the page's. */
interface PageElement {
  matches: (selector: string) => boolean
  checkVisibility: (options: object) => boolean
  closest: (selector: string) => PageElement | null
  outerHTML: string
  scrollWidth: number
  clientWidth: number
  getBoundingClientRect: () => { height: number }
}
declare const document: {
  querySelector: (selector: string) => PageElement | null
  querySelectorAll: (selector: string) => Iterable<PageElement>
  addEventListener: (type: 'focusin', act: (event: { target: PageElement }) => void) => void
}

const EXECUTABLE = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(
  existsSync,
)

/** Why tests in a browser cannot run here; false where they can. In CI they must. */
export const withoutBrowser: string | false =
  EXECUTABLE === undefined && process.env.CI === undefined
    ? 'no Chromium is installed: apt-get install chromium'
    : false

/** A host that leads to this machine, and that browsers do not trust without TLS as they do `127.0.0.1`. */
export const WITHOUT_TLS = 'offpeak.test'

/** Less than a test may take, so that it says what it waited for. */
const WAIT_MS = 60_000

/** For people to look at, where this variable is set. */
const WITH_SCREENSHOTS = process.env.OFFPEAK_TEST_SCREENSHOTS !== undefined
const SCREENSHOTS = new URL('../../test-output/console/', import.meta.url).pathname
const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js')

export async function launchChromium(): Promise<Browser> {
  assert.ok(EXECUTABLE, 'Chromium has to be installed')
  return await chromium.launch({
    executablePath: EXECUTABLE,
    args: [
      ...['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--disable-software-rasterizer'],
      `--host-resolver-rules=MAP ${WITHOUT_TLS} 127.0.0.1`,
    ],
  })
}

export class Visitor implements AsyncDisposable {
  readonly page: Page
  readonly problems: string[] = []
  /** Answers with these statuses are what the test is about; 0: there is none. */
  expected: readonly number[] = []
  readonly #context: BrowserContext
  readonly #url: string

  private constructor(context: BrowserContext, page: Page, url: string) {
    this.#context = context
    this.page = page
    this.#url = url
    page.on('pageerror', (error) => this.problems.push(`error: ${error.message}`))
    page.on('console', (message) => {
      const { 1: status = 0 } = /status of (\d+)|net::ERR_/.exec(message.text()) ?? [null, Number.NaN]
      if (message.type() !== 'error' || this.expected.includes(Number(status))) return
      this.problems.push(`console: ${message.text()} ${message.location().url}`)
    })
    page.on('request', (request) => {
      if (!/^(data|blob):/.test(request.url()) && !request.url().startsWith(`${url}/`))
        this.problems.push(`asked elsewhere: ${request.url()}`)
    })
  }

  static async arrive(
    browser: Browser,
    url: string,
    scheme: 'light' | 'dark' = 'light',
    locale: 'en-GB' | 'de-DE' = 'en-GB',
  ): Promise<Visitor> {
    const context = await browser.newContext({
      colorScheme: scheme,
      viewport: { width: 1280, height: 900 },
      locale,
      reducedMotion: 'reduce',
    })
    context.setDefaultTimeout(WAIT_MS)
    return new Visitor(context, await context.newPage(), url)
  }

  async open(path: string): Promise<void> {
    await this.page.goto(this.#url + path)
    await this.page.getByRole('heading', { level: 1 }).waitFor()
  }

  /** With the call that the form makes. */
  async signIn(key: string, path = '/console/batches'): Promise<void> {
    const headers = { 'x-offpeak-console': '1' }
    const data = { api_key: key }
    const answer = await this.#context.request.post(`${this.#url}/console/session`, { headers, data })
    assert.equal(answer.status(), 200)
    await this.open(path)
  }

  /** With the form. */
  async typeKey(key: string): Promise<void> {
    await this.open('/console/batches')
    await this.page.locator('input[type=password]').fill(key)
    await this.page.locator('button[type=submit]').click()
    await this.page.getByRole('heading', { name: 'Batches', level: 1 }).waitFor()
  }

  /** All that was asked for has been shown. */
  async settled(): Promise<void> {
    await this.page.waitForFunction(() => document.querySelector('.loading') === null)
  }

  /** What of a page is too small for a finger, or higher than a row of a phone may be, in a window of 390 pixels. */
  async tooSmallOrHigh(): Promise<string[]> {
    // Rows of long lists are laid out anew some frames after the window has changed.
    let found = await this.#tooSmallOrHigh()
    for (let frames = 0; found.length > 0 && frames < 30; frames++) {
      await this.page.evaluate('new Promise(requestAnimationFrame)')
      found = await this.#tooSmallOrHigh()
    }
    return found
  }

  async #tooSmallOrHigh(): Promise<string[]> {
    return await this.page.evaluate(() => {
      const controls =
        'button, select, input, textarea, summary, .button, .nav-link, .menu-item, .crumb a, .row-link'
      const found: string[] = []
      for (const element of document.querySelectorAll(controls)) {
        if (!element.checkVisibility({ visibilityProperty: true }) || element.closest('.skip')) continue
        // A row leads where its name does; the label of a box is clicked like the box.
        const target = element.matches('.row-link')
          ? element.closest('[role=row]')
          : (element.closest('.check, .drop, label.link') ?? element)
        const { height } = target?.getBoundingClientRect() ?? { height: 0 }
        if (height < 44) found.push(`${height} pixels high: ${element.outerHTML.slice(0, 150)}`)
      }
      for (const row of document.querySelectorAll('tbody [role=row]')) {
        const { height } = row.getBoundingClientRect()
        if (height > 96) found.push(`a row of ${height} pixels: ${row.outerHTML.slice(0, 300)}`)
      }
      return found
    })
  }

  /** Tables, and cells of long ones, of which a reader sees a part only, and by how much they are too wide. */
  async cutOffTables(): Promise<string[]> {
    return await this.page.evaluate(() =>
      [...document.querySelectorAll('.table-frame, .tall td')].flatMap(
        ({ scrollWidth, clientWidth, outerHTML }) =>
          scrollWidth > clientWidth
            ? [`${scrollWidth - clientWidth} pixels: ${outerHTML.slice(0, 150)}`]
            : [],
      ),
    )
  }

  /** By WCAG 2.2 A and AA, and by what is good practice. */
  async accessibilityProblems(): Promise<string[]> {
    if (!(await this.page.evaluate(() => 'axe' in globalThis))) {
      // Through the debugger: the page's policy lets in no script of ours.
      const debug = await this.#context.newCDPSession(this.page)
      await debug.send('Runtime.evaluate', { expression: await readFile(AXE, 'utf8') })
    }
    const found: unknown = await this.page.evaluate(async () => {
      const { axe } = globalThis as unknown as {
        axe: {
          run: (options: object) => Promise<{ violations: { id: string; nodes: { html: string }[] }[] }>
        }
      }
      const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']
      const { violations } = await axe.run({ runOnly: { type: 'tag', values: tags } })
      return violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 200)}`))
    })
    assert.ok(Array.isArray(found))
    return found.map(String)
  }

  /** What a pointer can use and the tabulator key does not reach. */
  async unreachableByKeyboard(): Promise<string[]> {
    const controls = 'a[href], button:not(:disabled), input, select, textarea, summary'
    const count = await this.page.evaluate((controls) => {
      const all = [...document.querySelectorAll(controls)].filter((element) => {
        const inClosed = element.closest('details:not([open])') && !element.matches('summary')
        return !inClosed && element.checkVisibility({ visibilityProperty: true })
      })
      const unreached = new Set(all)
      Object.assign(globalThis, { unreached })
      document.addEventListener('focusin', ({ target }) => unreached.delete(target))
      return all.length
    }, controls)
    // Lists that scroll take the focus as well.
    for (let i = 0; i < count + 10; i++) await this.page.keyboard.press('Tab')
    return await this.page.evaluate(() => {
      const { unreached } = globalThis as unknown as { unreached: Set<PageElement> }
      return [...unreached].map(({ outerHTML }) => outerHTML.slice(0, 150))
    })
  }

  async screenshot(name: string): Promise<void> {
    if (!WITH_SCREENSHOTS) return
    await mkdir(SCREENSHOTS, { recursive: true })
    await this.page.screenshot({ path: join(SCREENSHOTS, `${name}.png`) })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#context.close()
    assert.deepEqual(this.problems, [])
  }
}
