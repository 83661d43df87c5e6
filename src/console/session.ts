// The session of the reader. The key is sent once and not kept: a cookie that scripts cannot read takes its place.
import type { Scope } from '../domain/api-key.ts'
import type { ConsoleSession } from '../wire/project.ts'
import { ApiFailure, connectionLost, get, post, remove, serviceUrl, whenSignedOut } from './api.ts'
import { Cell, useCell } from './cell.ts'

const PATH = '/console/session'

/** The session; undefined until it is read, null when no key is signed in. */
const session = new Cell<ConsoleSession | null | undefined>(undefined)

export const useSession = (): ConsoleSession | null | undefined => useCell(session)

/** Whether the session of this page has ended. */
export const hasEnded = new Cell(false)

/** The reason for which a person signed in by a proxy may not use the service. */
export const noAccess = new Cell<string | null>(null)

/** The token of the one-time link in the address, until it is used or dismissed. */
export const link = new Cell<string | null>(null)

export const may = (scope: Scope): boolean => session.value?.scopes.includes(scope) ?? false

/** The ID of the signed-in key; empty where there is none. */
export const signedInKey = (): string => session.value?.api_key_id ?? ''

/** Reads the session. A one-time link in the address does not sign in by itself, because links can be forged. */
export async function readSession(): Promise<void> {
  whenSignedOut(() => {
    if (session.value) hasEnded.set(true)
    session.set(null)
  })
  readLink()
  // A link that is pasted into the address of the open page does not load it again.
  addEventListener('hashchange', readLink)
  // Whether the service saw a cookie, which browsers withhold when another site or a file led here.
  const cookie = document.documentElement.dataset.cookie === 'yes' || link.value !== null
  const known = document.getElementById('session')?.textContent
  session.set(known ? (JSON.parse(known) as ConsoleSession) : cookie ? undefined : null)
  if (session.value === undefined) await askSession()
}

async function askSession(): Promise<void> {
  try {
    session.set(await get<ConsoleSession>(PATH))
  } catch (error) {
    if (!(error instanceof ApiFailure)) throw error
    if (error.status !== 0) {
      if (link.value === null && error.status === 401) hasEnded.set(true)
      if (error.status === 403) noAccess.set(error.message)
      return session.set(null)
    }
    const end = connectionLost.watch(() => {
      if (connectionLost.value !== null) return
      end()
      void askSession()
    })
  }
}

function readLink(): void {
  const token = new URLSearchParams(location.hash.slice(1)).get('link')
  if (token === null) return
  history.replaceState(null, '', location.pathname + location.search)
  link.set(token)
}

export async function signIn(api_key: string): Promise<void> {
  session.set(await post<ConsoleSession>(PATH, { api_key }))
}

/** Signs in by a link, and ends the previous session unless the link has expired. */
export async function signInByLink(token: string): Promise<void> {
  const before = session.value
  try {
    session.set(await post<ConsoleSession>(PATH, { link: token }))
  } catch (error) {
    session.set(before)
    throw error
  }
  link.set(null)
}

export async function signOut(): Promise<void> {
  const { person, sign_out } = session.value ?? {}
  await remove(PATH)
  // The next call would sign the person in again: the proxy has to sign out.
  if (person !== undefined) return location.assign(sign_out ?? serviceUrl('/'))
  hasEnded.set(false)
  session.set(null)
}
