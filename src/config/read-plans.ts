// The plans that projects can be on. payg and enterprise exist always; the configuration may change them and
// add others.

import { durationMs } from '../domain/duration.ts'
import type { CompletionWindow, Plan } from '../domain/plan.ts'
import { QUOTAS_DEFAULT, type QuotaName, type Quotas } from '../domain/quota.ts'
import { duration, integer, type Kind, size } from './kinds.ts'
import type { Section } from './section.ts'

const DAY_MS = 86_400_000

const BUILT_IN: readonly Plan[] = [
  {
    name: 'payg',
    completion_windows: [window('24h')],
    file_retention_ms: 90 * DAY_MS,
    quotas: QUOTAS_DEFAULT,
  },
  {
    name: 'enterprise',
    completion_windows: [window('4h'), window('24h')],
    file_retention_ms: 395 * DAY_MS,
    quotas: QUOTAS_DEFAULT,
  },
]

const COUNT = orOff(integer(0))
const BYTES = orOff(size(0))

/** `expires_at` and `created` are whole seconds, so a window has to be. */
const WINDOW: Kind<CompletionWindow> = {
  expected: 'a duration of whole seconds such as 4h or 24h, at least 1s',
  scalars: ['string'],
  read: (text) => {
    const ms = durationMs(text)
    return ms !== null && ms > 0 && ms % 1000 === 0 ? { text, ms } : undefined
  },
}

export function readPlans(root: Section): Map<string, Plan> {
  return root.namedMap('plans', (plans) => {
    const all = new Map(BUILT_IN.map((plan) => [plan.name, plan]))
    for (const name of plans.names()) {
      if (!/^[a-z0-9][a-z0-9_-]{0,63}$/.test(name)) {
        plans.problem(
          name,
          'the name of a plan is made of lower-case letters, digits, dashes and underscores',
        )
      }
      all.set(
        name,
        plans.section(name, (section) => readPlan(section, name, all.get(name))),
      )
    }
    return all
  })
}

function readPlan(section: Section, name: string, built_in: Plan | undefined): Plan {
  const windows = section.values('completion_windows', WINDOW)
  if (windows === null && built_in === undefined) {
    section.problem('completion_windows', `is missing; expected a list such as [4h, 24h]`)
  }
  if (windows !== null) {
    const repeated = windows.find((window, i) => windows.findIndex((other) => other.ms === window.ms) < i)
    if (repeated !== undefined) section.problem('completion_windows', `lists ${repeated.text} twice`)
  }
  return {
    name,
    completion_windows: windows ?? built_in?.completion_windows ?? [],
    file_retention_ms: section.value(
      'file_retention',
      duration(1000),
      built_in?.file_retention_ms ?? 90 * DAY_MS,
    ),
    quotas: section.section('quotas', readQuotas),
  }
}

function readQuotas(section: Section): Quotas {
  const count = (name: QuotaName) => section.value(name, COUNT, QUOTAS_DEFAULT[name])
  return {
    stored_bytes: section.value('stored_bytes', BYTES, QUOTAS_DEFAULT.stored_bytes),
    open_batches: count('open_batches'),
    queued_lines: count('queued_lines'),
    limits: count('limits'),
    webhooks: count('webhooks'),
    entities_per_batch: count('entities_per_batch'),
    uploads: count('uploads'),
  }
}

function orOff(kind: Kind<number>): Kind<number | null> {
  return {
    expected: `${kind.expected}, or off`,
    scalars: ['number', 'string', 'boolean'],
    read: (found) => (/^(off|false)$/.test(found) ? null : kind.read(found)),
  }
}

function window(text: string): CompletionWindow {
  return { text, ms: durationMs(text) ?? 0 }
}
