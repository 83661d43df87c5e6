// GET /docs: the API reference as an interactive page, which the browser renders from /openapi.json. Everything
// that the page loads is served from here, and its content security policy allows nothing else.
import { readFile } from 'node:fs/promises'
import { type App, publicRoute } from '../route.ts'

const PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Offpeak API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<style>body { margin: 0 } .swagger-ui .info { margin: 24px 0 }</style>
</head>
<body>
<div id="docs"><p>This page needs JavaScript. The same in JSON: <a href="/openapi.json">/openapi.json</a></p></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
`

/** API keys that are entered on the page are not stored. */
const START = `SwaggerUIBundle({
  url: '/openapi.json',
  dom_id: '#docs',
  deepLinking: true,
  validatorUrl: null,
  persistAuthorization: false,
  defaultModelsExpandDepth: 0,
  docExpansion: 'list',
})
`

/** Inline styles are allowed because scripts set them; scripts must come from this origin. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ')

const LIBRARY = [
  ['swagger-ui-bundle.js', 'text/javascript; charset=utf-8'],
  ['swagger-ui.css', 'text/css; charset=utf-8'],
] as const

const DAY_S = 86_400

export function docsRoutes(app: App): void {
  const serve = (url: string, type: string, content: () => Promise<string | Buffer>, max_age_s = 0): void =>
    publicRoute(app, `GET ${url}`, {
      handler: async (_request, reply) =>
        reply
          .headers({
            'content-security-policy': POLICY,
            'cache-control': max_age_s > 0 ? `public, max-age=${max_age_s}` : 'no-cache',
            'referrer-policy': 'no-referrer',
          })
          .type(type)
          .send(await content()),
    })
  serve('/docs', 'text/html; charset=utf-8', async () => PAGE)
  serve('/docs/start.js', 'text/javascript; charset=utf-8', async () => START)
  for (const [name, type] of LIBRARY) {
    const file = new URL(import.meta.resolve(`@fastify/swagger-ui/static/${name}`))
    serve(`/docs/${name}`, type, () => readFile(file), DAY_S)
  }
}
