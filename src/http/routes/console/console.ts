// GET /console and everything below it: one page, which shows what its address names, and the files that it loads.
// Nothing comes from elsewhere, and the page's policy lets it load nothing else.
import { createReadStream } from 'node:fs'
import { Type } from 'typebox'
import { ApiError } from '../../../domain/errors.ts'
import { consoleTokenOf } from '../../access/console-cookie.ts'
import { MethodNotAllowed } from '../../response/send-error.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { ConsoleAssets, consolePage } from './console-assets.ts'

const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  // Pictures of prompts that are part of the prompt.
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ')

const PAGE_HEADERS = {
  'content-security-policy': POLICY,
  'cache-control': 'no-cache',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'permissions-policy': 'camera=(), geolocation=(), microphone=()',
}

/** The example that a new project can run; it comes with the package. */
const EXAMPLE = new URL('../../../../examples/gsm8k.jsonl', import.meta.url)

const YEAR_S = 31_536_000

/** A service that has just started has more urgent work. */
const PREPARED_AFTER_MS = 1_000

type Deps = Pick<RouteDependencies, 'clock' | 'prepareConsole'>

export function consoleRoutes(app: App, { clock, prepareConsole = false }: Deps): void {
  const assets = new ConsoleAssets()
  let cancel = (): void => {}
  app.addHook('onListen', async () => {
    if (!prepareConsole) return
    // Whoever asks for a page meets the same error.
    cancel = clock.after(PREPARED_AFTER_MS, () => void assets.get().catch(() => {}))
  })
  app.addHook('onClose', async () => {
    cancel()
    assets.close()
  })

  for (const url of ['/console', '/console/*'])
    route(app, {
      method: 'GET',
      url,
      access: 'public',
      doc: null,
      accepts: {},
      async handler({ headers, url }, reply) {
        const { pathname } = new URL(url, 'http://console')
        const methods = app.routeTable.methodsOf(pathname)
        if (!methods.includes('GET')) throw new MethodNotAllowed(methods)
        const path = pathname.slice('/console'.length)
        const signedIn = consoleTokenOf(headers.cookie) !== null
        return reply
          .headers(PAGE_HEADERS)
          .type('text/html; charset=utf-8')
          .send(consolePage(await assets.get(), path, signedIn))
      },
    })

  route(app, {
    method: 'GET',
    url: '/console/gsm8k.jsonl',
    access: 'public',
    doc: null,
    accepts: {},
    handler: async (_request, reply) => reply.type('application/jsonl').send(createReadStream(EXAMPLE)),
  })

  route(app, {
    method: 'GET',
    url: '/console/assets/:version/*',
    access: 'public',
    doc: null,
    accepts: { params: Type.Object({ version: Type.String(), '*': Type.String() }) },
    async handler({ params, headers, method, originalUrl }, reply) {
      const { files, version } = await assets.get()
      const asset = files.get(params['*'])
      if (!asset) throw new ApiError('unknown_endpoint', `There is no ${method} ${originalUrl}.`)
      // While versions are rolled out, a page may ask for the files of the one that is not here: no one keeps those.
      const kept = params.version === version ? `public, max-age=${YEAR_S}, immutable` : 'no-store'
      reply.headers({ 'cache-control': kept, vary: 'accept-encoding' }).type(asset.type)
      if (!/\bgzip\b/.test(headers['accept-encoding'] ?? '')) return reply.send(asset.bytes)
      return reply.header('content-encoding', 'gzip').send(asset.gzip)
    },
  })
}
