// Finds what does not work, for the first page and the titles of all pages, and reads it again when it has changed.
import { useEffect } from 'preact/hooks'
import { serversOf } from '../domain/server-state.ts'
import type { DeliveryObject, WebhookObject } from '../wire/event.ts'
import type { LimitObject } from '../wire/limit.ts'
import type { List } from '../wire/shape.ts'
import type { ServiceStatus } from '../wire/status.ts'
import { type ApiFailure, get, getAll } from './api.ts'
import { now } from './browser-clock.ts'
import { Cell } from './cell.ts'
import { dateTime } from './format.ts'
import { type MessageKey, t } from './i18n.ts'
import { type Cap, capsOf, isReached, readSpent, type Spent } from './limit-shares.ts'
import { waitingWords } from './parts/text.tsx'
import { useGet, useResource } from './resource.ts'
import { may } from './session.ts'

export type Problem = { title: MessageKey; to: string; text: string }

export interface Health {
  /** The problems; null until everything that the key may see is read. */
  problems: readonly Problem[] | null
  /** The resources that the key may not see. */
  unseen: readonly MessageKey[]
  caps: readonly Cap[]
  spent: Spent | null
  failure: ApiFailure | null
}

export const health = new Cell<Health>({ problems: null, unseen: [], caps: [], spent: null, failure: null })

/** Waiting reasons that are problems, rather than the order of a batch. */
const BROKEN = ['no_worker', 'model_unavailable', 'lines_failing', 'storage_failing', 'usage_limit']

export const isBroken = (code: string): boolean => BROKEN.includes(code)

/** Keeps the state of the service, `health`, up to date while a page is shown. */
export function useHealth(): void {
  const sees = may('batches:read') || may('operator')
  const status = useGet<ServiceStatus>(sees ? '/v1/status' : null)
  const about = ['limits', 'usage']
  const limits = useResource(readCaps, [], { about })
  const webhooks = useResource(readFailing, [], { about: ['webhooks', 'deliveries'] })
  const parts = [status, limits, webhooks]
  const isRead = parts.every((part) => part.data || part.failure || (part === status && !sees))
  const caps = limits.data?.caps ?? []
  const known: Health = {
    problems: isRead ? problemsOf(status.data, caps, webhooks.data ?? []) : null,
    unseen: [
      ...(may('operator') ? [] : (['overview.unseen.servers'] as const)),
      ...(may('limits:read') ? [] : (['nav.limits'] as const)),
      ...(may('webhooks:read') ? [] : (['nav.webhooks'] as const)),
    ],
    caps,
    spent: limits.data?.spent ?? null,
    failure: parts.find(({ failure }) => failure)?.failure ?? null,
  }
  useEffect(() => health.set(known))
}

async function readCaps(signal: AbortSignal): Promise<{ caps: Cap[]; spent: Spent | null }> {
  if (!may('limits:read')) return { caps: [], spent: null }
  const limits = await getAll<LimitObject>('/v1/limits', { signal })
  const spent = await readSpent(limits, signal)
  return { caps: capsOf(limits, spent), spent }
}

const WEBHOOKS_MAX = 20

/** The names of failing webhooks, each with its error. */
async function readFailing(signal: AbortSignal): Promise<string[]> {
  if (!may('webhooks:read')) return []
  const { data } = await get<List<WebhookObject>>('/v1/webhooks', { limit: WEBHOOKS_MAX }, { signal })
  const failing = await Promise.all(
    data.map(async ({ id, url, enabled, disabled_reason }) => {
      if (!enabled) return disabled_reason ?? null
      const path = `/v1/webhooks/${id}/deliveries`
      const failed = lastFailed((await get<List<DeliveryObject>>(path, { limit: 10 }, { signal })).data)
      const next = failed?.next_attempt_at
      const when = next == null ? '' : ` · ${t('webhooks.next')} ${dateTime(next, now())}`
      return failed && `${url}: ${failed.last_error}${when}`
    }),
  )
  return failing.filter((text) => text !== null)
}

/** The newest attempted delivery, if it failed. */
export function lastFailed(deliveries: readonly DeliveryObject[]): DeliveryObject | null {
  const last = deliveries.find(({ attempts }) => attempts > 0)
  return last?.last_error == null ? null : last
}

/** The problems to show. An outage is named once: by its server where the key sees servers, else by its model. */
function problemsOf(
  status: ServiceStatus | null,
  caps: readonly Cap[],
  webhooks: readonly string[],
): Problem[] {
  const { workers_alive = true, service, waiting = [] } = status ?? {}
  const servers = may('operator') ? '/servers' : '/batches'
  const down = service ? serversOf(service).filter(({ state }) => state === 'down') : []
  const isTold = new Set(down.map(({ model }) => model))
  const blocked = waiting.filter(
    ({ code, model = '' }) => isBroken(code) && code !== 'no_worker' && !isTold.has(model),
  )
  return [
    ...(workers_alive
      ? []
      : [{ title: 'waiting.no_worker' as const, to: servers, text: t('servers.noWorker') }]),
    ...(service?.stores ?? [])
      .filter(({ ok }) => !ok)
      .map(({ name, error }) => ({
        title: `servers.${name}` as const,
        to: servers,
        text: error ?? t('servers.failing'),
      })),
    ...down.map(({ model, upstream, last_error }) => ({
      title: 'overview.serverDown' as const,
      to: servers,
      text: [`${model} · ${upstream}`, last_error].filter(Boolean).join(': '),
    })),
    ...blocked.map(({ code, example, batches, ...reason }) => ({
      title: `waiting.${code}` as MessageKey,
      to: code === 'usage_limit' ? '/limits' : `/batches/${example}`,
      text: `${waitingWords(reason)} (${t('servers.batches', { n: batches })})`,
    })),
    ...caps.filter(isReached).map(({ limit, name }) => ({
      title: 'overview.capReached' as const,
      to: `/limits?change=${limit.id}`,
      text: name ?? t('limits.project'),
    })),
    ...webhooks.map((text) => ({ title: 'overview.webhookFailing' as const, to: '/webhooks', text })),
  ]
}
