// Events of batches and limits.
import { Type } from 'typebox'
import { ApiError } from '../../domain/errors.ts'
import { eventObject } from '../../notify/record-event.ts'
import { listEvents, readEvent } from '../../store/webhooks.ts'
import { EventObject, EventTypeShape } from '../../wire/event.ts'
import { listOf, PageQuery } from '../../wire/list.ts'
import { callerOf } from '../access/caller.ts'
import { readPage } from '../request/page.ts'
import { type App, type RouteDependencies, route } from '../route.ts'

const EventParams = Type.Object({ event_id: Type.String() })

type Deps = Pick<RouteDependencies, 'store'>

export function eventRoutes(app: App, { store }: Deps): void {
  route(app, {
    method: 'GET',
    url: '/v1/events',
    access: ['events:read'],
    doc: {
      operation: 'listEvents',
      summary: 'List events',
      answer: listOf(EventObject, 'EventList'),
    },
    accepts: { querystring: Type.Object({ ...PageQuery, type: Type.Optional(EventTypeShape) }) },
    async handler(request) {
      const { project_id } = callerOf(request)
      const { type, ...page } = request.query
      return await readPage(page, {
        exists: async (id) => (await readEvent(store.read, project_id, id)) !== undefined,
        list: (bounds) => listEvents(store.read, project_id, { ...bounds, type }),
        show: eventObject,
      })
    },
  })

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
