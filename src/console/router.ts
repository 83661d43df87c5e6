// The address bar as state. A click on an ordinary link to the console changes the page without a reload, and the address has
// all that a reader may want to return to. Where a page is scrolled is in the state of its entry in the browser's history.
import { isRecord } from '../domain/json-record.ts'
import { serviceUrl } from './api.ts'
import { later } from './browser-clock.ts'
import { Cell, useCell } from './cell.ts'

const ROOT = serviceUrl('/console')
/** The time in ms without scrolling after which the position is stored. */
const SCROLLED_MS = 150

interface Address {
  /** The path behind /console, without a slash at the end: `/batches/batch_…`. */
  path: string
  query: URLSearchParams
  /** A number that grows with each page change, but not when only the query is replaced. */
  visit: number
  /** Whether the reader came to the page through the browser's history. */
  isReturn: boolean
}

function read(visit: number, isReturn: boolean): Address {
  const path = location.pathname.slice(ROOT.length).replace(/\/+$/, '')
  const query = new URLSearchParams(location.search)
  return { path: path === '' ? '/overview' : path, query, visit, isReturn }
}

const address = new Cell<Address>(read(0, false))

export const useAddress = (): Address => useCell(address)

export const currentAddress = (): Address => address.value

/** The address of a page; `to` begins behind /console. */
export const href = (to: string): string => ROOT + to

export function navigate(to: string): void {
  leave(href(to))
  address.set(read(address.value.visit + 1, false))
  scrollTo(0, 0)
}

function leave(to: string): void {
  keepScroll()
  endReturn()
  history.pushState(null, '', to)
}

/** The position to scroll to once the page is high enough; null afterwards, or when the reader scrolls. */
let returnTo: number | null = null

function beginReturn(state: unknown): void {
  returnTo = isRecord(state) ? Number(state.scroll) : 0
  requestAnimationFrame(scrollBack)
}

function endReturn(): void {
  returnTo = null
}

function scrollBack(): void {
  if (returnTo === null) return
  scrollTo(0, returnTo)
  if (scrollY >= returnTo - 1) endReturn()
}

function keepScroll(): void {
  if (returnTo === null) history.replaceState({ scroll: scrollY }, '')
}

/** Restores positions itself: the browser would scroll before the lists of a page are read. */
function watchScroll(): void {
  history.scrollRestoration = 'manual'
  beginReturn(history.state)
  let cancel = (): void => {}
  const keepSoon = (): void => {
    cancel()
    cancel = later(SCROLLED_MS, keepScroll)
  }
  addEventListener('scroll', keepSoon, { passive: true })
  for (const name of ['wheel', 'touchmove', 'keydown', 'pointerdown'])
    addEventListener(name, endReturn, { passive: true })
  new ResizeObserver(scrollBack).observe(document.body)
}

/** Changes the query of this page; null and '' remove a parameter. */
export function replaceQuery(changes: Readonly<Record<string, string | null>>): void {
  const query = new URLSearchParams(location.search)
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === '') query.delete(name)
    else query.set(name, value)
  }
  const text = query.toString()
  history.replaceState(history.state, '', location.pathname + (text === '' ? '' : `?${text}`))
  address.set(read(address.value.visit, address.value.isReturn))
}

/** Makes links and the back button change the page. */
export function watchAddress(): void {
  watchScroll()
  // Browsers resolve a relative address of the icon again whenever the page's own changes.
  const icon = document.querySelector<HTMLLinkElement>('link[rel=icon]')
  if (icon) icon.href = new URL(icon.href).href
  addEventListener('popstate', ({ state }) => {
    beginReturn(state)
    address.set(read(address.value.visit + 1, true))
  })
  document.addEventListener('click', (event) => {
    if (event.defaultPrevented || event.button !== 0) return
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return
    const link = event.target instanceof Element ? event.target.closest('a') : null
    if (link?.target !== '' || link.hasAttribute('download')) return
    const url = new URL(link.href)
    if (url.origin !== location.origin || !`${url.pathname}/`.startsWith(`${ROOT}/`)) return
    event.preventDefault()
    if (url.hash !== '' && url.pathname === location.pathname) return goWithin(url)
    navigate(url.pathname.slice(ROOT.length) + url.search)
  })
}

/** Goes to an anchor of this page without redrawing it. */
function goWithin(url: URL): void {
  leave(url.pathname + url.search)
  address.set(read(address.value.visit, false))
  const place = document.getElementById(url.hash.slice(1))
  place?.scrollIntoView({ block: 'start' })
  place?.focus({ preventScroll: true })
}

export interface PageParams {
  /** The parameters in the path: the ID of a batch, the number of a line. */
  id: string
  line: string
}
