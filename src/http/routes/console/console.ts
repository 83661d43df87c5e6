// GET /console and all paths below it: one HTML page, which shows what its address names, and the files that it loads.
// Its policy lets it load nothing from other origins.
import { createReadStream } from 'node:fs'
import type { IncomingMessage } from 'node:http'
import { ApiError } from '../../../domain/errors.ts'
import type { ConsoleSession } from '../../../wire/project.ts'
import { authenticateSession, consoleTokenOf } from '../../access/auth.ts'
import { MethodNotAllowed, pagePolicy } from '../../response/send-error.ts'
import { type App, publicRoute, type RouteDependencies } from '../../route.ts'
import { type ConsoleAssets, consoleAssets } from './assets.ts'
import { showSession } from './session.ts'

/** The content security policy of the console's page; images in prompts may be `data:` URLs. */
const POLICY = pagePolicy()

const PAGE_HEADERS = {
  'content-security-policy': POLICY,
  'cache-control': 'no-cache',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'permissions-policy': 'camera=(), geolocation=(), microphone=()',
}

/** The example that a new project can run; the package contains it. */
const EXAMPLE = new URL('../../../../examples/gsm8k.jsonl', import.meta.url)

const YEAR_S = 31_536_000

/** The time in ms from the start to the preparation of the console: other work is more urgent. */
const PREPARED_AFTER_MS = 1_000

export function consoleRoutes(app: App, deps: RouteDependencies): void {
  const { store, clock, region, version, prepareConsole = false, proxyIdentity } = deps
  let cancel = (): void => {}
  app.addHook('onListen', async () => {
    if (!prepareConsole) return
    // A request for a page gets the same error.
    cancel = clock.after(PREPARED_AFTER_MS, () => void consoleAssets().catch(() => {}))
  })
  app.addHook('onClose', async () => cancel())

  for (const url of ['/console', '/console/*'])
    publicRoute(app, `GET ${url}`, {
      async handler({ headers, url, raw }, reply) {
        const { pathname } = new URL(url, 'http://console')
        const methods = app.routeTable.methodsOf(pathname)
        if (!methods.includes('GET')) throw new MethodNotAllowed(methods)
        const signedIn = consoleTokenOf(headers.cookie) !== null || Boolean(proxyIdentity?.personOf(raw))
        return reply
          .headers(PAGE_HEADERS)
          .type('text/html; charset=utf-8')
          .send(consolePage(pathname, await consoleAssets(), signedIn, await sessionOf(headers.cookie, raw)))
      },
    })

  /** Reads the session of a cookie; null where the page has to request it, and to show its error. */
  async function sessionOf(cookie: string | undefined, raw: IncomingMessage): Promise<ConsoleSession | null> {
    const token = consoleTokenOf(cookie)
    if (token === null || proxyIdentity?.personOf(raw)) return null
    return await authenticateSession(store.read, token, clock.now()).then(
      (caller) => showSession(caller, { region, version, proxyIdentity }),
      () => null,
    )
  }

  publicRoute(app, 'GET /console/gsm8k.jsonl', {
    handler: async (_request, reply) => reply.type('application/jsonl').send(createReadStream(EXAMPLE)),
  })

  publicRoute(app, 'GET /console/assets/:version/*', {
    async handler({ params, headers, method, originalUrl }, reply) {
      const { files, version } = await consoleAssets()
      const asset = files.get(params['*'])
      if (!asset) throw new ApiError('unknown_endpoint', `There is no ${method} ${originalUrl}.`)
      // During a rollout, a page may request files of a version that is not here: no cache may keep those.
      const kept = params.version === version ? `public, max-age=${YEAR_S}, immutable` : 'no-store'
      reply.headers({ 'cache-control': kept, vary: 'accept-encoding' }).type(asset.type)
      if (!/\bgzip\b/.test(headers['accept-encoding'] ?? '')) return reply.send(asset.bytes)
      return reply.header('content-encoding', 'gzip').send(asset.gzip)
    },
  })
}

/**
 * The HTML page, whose URLs are relative, as a proxy may serve it below a path. `signedIn`: whether the browser sent a
 * cookie, or the proxy names a person; `session`: the session, if known, so that the page need not request it.
 */
function consolePage(
  pathname: string,
  { version, imported }: ConsoleAssets,
  signedIn: boolean,
  session: ConsoleSession | null,
): string {
  const root = '../'.repeat(pathname.split('/').length - 2)
  const at = (path: string): string => `${root}console/assets/${version}/${path}`
  const preloads = imported.map((path) => `<link rel="modulepreload" href="${at(path)}">\n`).join('')
  const known =
    session &&
    `<script type="application/json" id="session">${JSON.stringify(session).replaceAll('<', '\\u003c')}</script>\n`
  return `<!doctype html>
<html lang="en" data-cookie="${signedIn ? 'yes' : 'no'}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Offpeak</title>
<link rel="icon" href="${at('icon.svg')}" type="image/svg+xml">
<link rel="stylesheet" href="${at('console.css')}">
${preloads}<script type="module" src="${at('app.js')}"></script>
${known ?? ''}</head>
<body>
<div id="app"><noscript>The console needs JavaScript. The same can be done with the command line and the API: <a href="${root}docs">/docs</a></noscript></div>
</body>
</html>
`
}

/** Adds GET /: redirects a browser to the console, and lists the endpoints for other callers. */
export function rootRoute(app: App): void {
  publicRoute(app, 'GET /', {
    async handler({ headers }, reply) {
      reply.header('vary', 'accept')
      if (headers.accept?.includes('text/html')) return reply.redirect('console')
      return {
        service: 'offpeak',
        api: '/v1',
        reference: '/docs',
        openapi: '/openapi.json',
        console: '/console',
      }
    },
  })
}
