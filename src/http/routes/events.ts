// Events of batches and limits.
import { Type } from 'typebox'
import { eventObject } from '../../notify/record-event.ts'
import { listEvents, readEvent } from '../../store/webhooks.ts'
import { EventObject, EventTypeShape } from '../../wire/event.ts'
import { listOf, PageQuery } from '../../wire/list.ts'
import { readPage } from '../request/page.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'

type Deps = Pick<RouteDependencies, 'store'>

export function eventRoutes(app: App, { store }: Deps): void {
  route(app, 'GET /v1/events', {
    access: ['events:read'],
    operation: 'listEvents',
    summary: 'List events',
    answer: listOf(EventObject, 'EventList'),
    query: { ...PageQuery, type: Type.Optional(EventTypeShape) },
    handler: ({ query: { type, ...page } }, { project_id }) =>
      readPage(page, {
        find: (id) => readEvent(store.read, project_id, id),
        list: (bounds) => listEvents(store.read, project_id, { ...bounds, type }),
        show: eventObject,
      }),
  })

  route(app, 'GET /v1/events/:event_id', {
    access: ['events:read'],
    operation: 'getEvent',
    summary: 'Read an event',
    answer: EventObject,
    errors: ['event_not_found'],
    handler: async ({ params }, { project_id }) =>
      eventObject(found(await readEvent(store.read, project_id, params.event_id), 'event_not_found')),
  })
}
