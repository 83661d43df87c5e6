// GET /v1/events/{event_id}
import { ApiError } from '../../../domain/errors.ts'
import { eventObject } from '../../../notify/event-object.ts'
import { readEvent } from '../../../store/events.ts'
import { EventObject } from '../../../wire/event.ts'
import { callerOf } from '../../access/caller.ts'
import { EventParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'

export function getEventRoute(app: App, { store }: Pick<RouteDependencies, 'store'>): void {
  route(app, {
    method: 'GET',
    url: '/v1/events/:event_id',
    access: ['events:read'],
    doc: {
      operation: 'getEvent',
      summary: 'Read an event',
      answer: EventObject,
      errors: ['event_not_found'],
    },
    accepts: { params: EventParams },
    async handler(request) {
      const event = await readEvent(store.read, callerOf(request).project_id, request.params.event_id)
      if (!event) throw new ApiError('event_not_found')
      return eventObject(event)
    },
  })
}
