// Who is signed in. The key itself is sent once and then forgotten: what stays is a cookie that scripts cannot read.
import type { Scope } from '../domain/api-key.ts'
import type { ConsoleSession } from '../wire/console-session.ts'
import { ApiFailure, get, post, remove, whenSignedOut } from './api.ts'
import { Cell, useCell } from './cell.ts'

const PATH = '/console/session'

/** Undefined until the service was asked; null when nobody is signed in. */
const session = new Cell<ConsoleSession | null | undefined>(undefined)

export function useSession(): ConsoleSession | null | undefined {
  return useCell(session)
}

export function may(scope: Scope): boolean {
  return session.value?.scopes.includes(scope) ?? false
}

/** Asks who is signed in; a one-time link in the address signs in first. */
export async function readSession(): Promise<void> {
  whenSignedOut(() => session.set(null))
  // Whether there is a cookie; only the service can see it. Without one there is nothing to ask.
  const cookie = document.documentElement.dataset.cookie === 'yes'
  const link = new URLSearchParams(location.hash.slice(1)).get('link')
  try {
    if (link !== null) {
      history.replaceState(null, '', location.pathname + location.search)
      session.set(await post<ConsoleSession>(PATH, { link }))
    } else session.set(cookie ? await get<ConsoleSession>(PATH) : null)
  } catch (error) {
    if (!(error instanceof ApiFailure)) throw error
    session.set(null)
  }
}

export async function signIn(api_key: string): Promise<void> {
  session.set(await post<ConsoleSession>(PATH, { api_key }))
}

export async function signOut(): Promise<void> {
  await remove(PATH)
  session.set(null)
}
