// GET /v1/settings: the configuration in force, for operators.
import { Settings } from '../../../wire/settings.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'

export function settingsRoute(
  app: App,
  { settings, version }: Pick<RouteDependencies, 'settings' | 'version'>,
): void {
  route(app, {
    method: 'GET',
    url: '/v1/settings',
    access: ['operator'],
    doc: {
      operation: 'getSettings',
      summary: 'Read the configuration in force',
      description: 'With defaults, durations in ms and sizes in bytes; secrets are hidden.',
      answer: Settings,
    },
    accepts: {},
    handler: async () => ({ object: 'settings', version, configuration: settings() }),
  })
}
