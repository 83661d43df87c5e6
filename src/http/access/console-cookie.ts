// The cookie that carries a session of the console. No script can read it and no other site can send it; what changes
// something needs a header besides, which a page of another origin cannot set.
import type { FastifyRequest } from 'fastify'
import { hashConsoleToken } from '../../domain/api-key.ts'
import { ApiError } from '../../domain/errors.ts'

const NAME = 'offpeak_console'
const HEADER = 'x-offpeak-console'

/** The hash of the token in a Cookie header; null where there is none. */
export function consoleTokenOf(cookies: string | undefined): string | null {
  for (const cookie of (cookies ?? '').split(';')) {
    const [name, value = ''] = cookie.trim().split('=', 2)
    if (name === NAME) return hashConsoleToken(value)
  }
  return null
}

type Headers = FastifyRequest['headers']

/** The value of Set-Cookie. Over TLS, which only the browser knows of, the cookie is never sent without it. */
export function setConsoleCookie(token: string, maxAgeS: number, { origin }: Headers): string {
  const secure = origin?.startsWith('https://') ? '; Secure' : ''
  return `${NAME}=${token}; Path=/; Max-Age=${maxAgeS}; HttpOnly; SameSite=Strict${secure}`
}

export function clearConsoleCookie(headers: Headers): string {
  return setConsoleCookie('', 0, headers)
}

/** Throws cross_site_request. */
export function requireConsoleHeader(headers: Headers): void {
  if (headers[HEADER] !== '1') throw new ApiError('cross_site_request')
}
