// GET /config.schema.json: the JSON Schema of offpeak.yaml, for editors. `npm run docs` writes the file.
import { readFile } from 'node:fs/promises'
import { Type } from 'typebox'
import { route } from '../../route.ts'
import type { App } from '../../type-provider.ts'

const SCHEMA = new URL('../../../../docs/offpeak.schema.json', import.meta.url)

export function configSchemaRoute(app: App): void {
  route(app, {
    method: 'GET',
    url: '/config.schema.json',
    access: 'public',
    doc: {
      operation: 'getConfigSchema',
      summary: 'The JSON Schema of the configuration file',
      description:
        'The schema of this version of the service, for editors. It contains no setting of this server.',
      answer: Type.Unknown(),
    },
    accepts: {},
    handler: async (_request, reply) =>
      reply.type('application/json; charset=utf-8').send(await readFile(SCHEMA, 'utf8')),
  })
}
