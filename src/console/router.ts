// The address bar as state. Links are ordinary links: a click on a link to the console changes the page without a
// reload, and the address contains everything that a reader may want to return to.
import { Cell, useCell } from './cell.ts'

const ROOT = '/console'

interface Address {
  /** Behind /console, without a slash at the end: `/batches/batch_…`. */
  path: string
  query: URLSearchParams
  /** Grows with each page change, but not when only the query is replaced. */
  visit: number
}

function read(visit: number): Address {
  const path = location.pathname.slice(ROOT.length).replace(/\/+$/, '')
  return { path: path === '' ? '/overview' : path, query: new URLSearchParams(location.search), visit }
}

const address = new Cell<Address>(read(0))

export function useAddress(): Address {
  return useCell(address)
}

export function currentAddress(): Address {
  return address.value
}

/** `to` begins behind /console. */
export function href(to: string): string {
  return ROOT + to
}

export function navigate(to: string): void {
  history.pushState(null, '', href(to))
  address.set(read(address.value.visit + 1))
  scrollTo(0, 0)
}

/** Changes the query of this page; null and '' remove a parameter. */
export function replaceQuery(changes: Readonly<Record<string, string | null>>): void {
  const query = new URLSearchParams(location.search)
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === '') query.delete(name)
    else query.set(name, value)
  }
  const text = query.toString()
  history.replaceState(null, '', location.pathname + (text === '' ? '' : `?${text}`))
  address.set(read(address.value.visit))
}

/** Makes links and the back button change the page. */
export function watchAddress(): void {
  addEventListener('popstate', () => address.set(read(address.value.visit + 1)))
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

/** To a place of this page, which stays as it is otherwise. */
function goWithin(url: URL): void {
  history.pushState(null, '', url.pathname + url.search)
  address.set(read(address.value.visit))
  const place = document.getElementById(url.hash.slice(1))
  place?.scrollIntoView({ block: 'start' })
  place?.focus({ preventScroll: true })
}

export interface PageParams {
  /** What the address names: the ID of a batch, the number of a line. */
  id: string
  line: string
}
