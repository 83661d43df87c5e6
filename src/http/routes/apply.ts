// POST /v1/projects/apply: brings a project to what a document says: its plan, its limits and its webhooks. One
// transaction compares and changes; a dry run does the same and takes it back.
import { ApiError, invalidParam } from '../../domain/errors.ts'
import { newId } from '../../domain/ids.ts'
import { checkQuotas, type QuotaHolder } from '../../intake/check-quota.ts'
import { deleteLimit, updateLimit } from '../../store/limits.ts'
import { ensureProject, lockProject, setPlan } from '../../store/projects.ts'
import { insertRow, readRow, selectRows } from '../../store/rows.ts'
import type { LimitRow, WebhookRow } from '../../store/schema.ts'
import type { Writer } from '../../store/store.ts'
import { deleteWebhook, updateWebhook } from '../../store/webhooks.ts'
import { AppliedProject, ApplyProject, type ProjectChange } from '../../wire/project.ts'
import { flagText } from '../../wire/shape.ts'
import { authorize } from '../access/auth.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { addLimit, newLimitRow, showLimit } from './limits.ts'
import { planNamed } from './projects.ts'
import { newWebhook, showWebhook, webhookChange } from './webhooks.ts'

/** The error that rolls back the transaction of a dry run. */
class TakenBack extends Error {}

export function applyRoute(app: App, deps: RouteDependencies): void {
  const { store, clock, plans, wake } = deps
  route(app, 'POST /v1/projects/apply', {
    access: ['limits:write', 'webhooks:write', 'operator'],
    operation: 'applyProject',
    summary: 'Bring a project to what is described',
    description:
      'Makes what is missing and changes what differs, in one transaction, and answers with the changes: none where nothing differs. `limits` and `webhooks` that are left out stay as they are. Limits are told apart by scope, subject, model, metric and window, webhooks by URL. Another project than that of the key, and its plan, need the scope `operator`.',
    answer: AppliedProject,
    errors: ['quota_exceeded', 'model_not_found', 'key_not_found'],
    rules: { body: { properties: { plan: { enum: [...plans.keys()] } } } },
    query: {
      prune: flagText('Deletes limits and webhooks that are not described, of those two that are given.'),
      dry_run: flagText('Changes nothing.'),
    },
    body: ApplyProject,
    takesNoKey: true,
    async handler(request, caller) {
      const { body, query } = request
      const wantsPlan = body.plan !== undefined && body.plan !== caller.plan
      if (body.name !== caller.project_name || wantsPlan) authorize(caller, ['operator'])
      if (body.limits) authorize(caller, ['limits:write'])
      if (body.webhooks) authorize(caller, ['webhooks:write'])
      const isDryRun = query.dry_run === 'true'
      const changes: ProjectChange[] = []
      let project_id = ''
      try {
        await store.write(async (tx) => {
          changes.length = 0
          project_id = await bringProject(tx, body, query.prune === 'true', changes)
          if (isDryRun) throw new TakenBack()
        })
      } catch (error) {
        if (!(error instanceof TakenBack)) throw error
      }
      if (!isDryRun && changes.length > 0) wake()
      return {
        object: 'applied_project' as const,
        project: body.name,
        project_id,
        dry_run: isDryRun,
        changes,
      }
    },
  })

  async function bringProject(
    tx: Writer,
    { name, plan, limits, webhooks }: ApplyProject,
    prune: boolean,
    changes: ProjectChange[],
  ): Promise<string> {
    const now = clock.now()
    const known = await readRow(tx, 'projects', { name })
    const wanted = planNamed(plans, plan ?? known?.plan ?? [...plans.keys()][0] ?? '')
    const project =
      known ?? (await ensureProject(tx, { id: newId('project', now), name, plan: wanted, created: now }))
    const { id } = project
    await lockProject(tx, id)
    const after = { name, plan: wanted }
    if (!known) changes.push({ action: 'create', kind: 'project', id, before: null, after })
    else if (known.plan !== wanted) {
      await setPlan(tx, id, wanted)
      changes.push({ action: 'update', kind: 'project', id, before: { name, plan: known.plan }, after })
    }
    const holder = { project_id: id, quotas: plans.get(wanted)!.quotas }
    if (limits) await bringLimits(tx, holder, limits, prune, changes)
    if (webhooks) await bringWebhooks(tx, holder, webhooks, prune, changes)
    return id
  }

  async function bringLimits(
    tx: Writer,
    holder: QuotaHolder,
    wanted: NonNullable<ApplyProject['limits']>,
    prune: boolean,
    changes: ProjectChange[],
  ): Promise<void> {
    const { project_id } = holder
    const now = clock.now()
    const rows: LimitRow[] = []
    for (const [i, body] of wanted.entries())
      rows.push(await at(`limits[${i}].`, () => newLimitRow(body, { project_id, created: now })))
    rejectRepeated(rows.map(keyOfLimit), 'limits', 'scope, subject, model, metric and window')
    const there = await selectRows(tx, 'limits', { project_id }).selectAll().orderBy('id').execute()
    const left = new Set(there)
    for (const [i, row] of rows.entries()) {
      const found = [...left].find((one) => keyOfLimit(one) === keyOfLimit(row))
      if (found) {
        left.delete(found)
        const { amount, action, description, notify_at } = row
        const change = { amount, action, description, notify_at }
        if (!differs(found, change)) continue
        const changed = await updateLimit(tx, project_id, found.id, change)
        const shown = { before: showLimit(found), after: changed ? showLimit(changed) : null }
        changes.push({ action: 'update', kind: 'limit', id: found.id, ...shown })
      } else {
        const made = await at(`limits[${i}].`, async () => {
          await checkQuotas(tx, holder, { limits: 1 })
          return await addLimit(tx, row, deps.models)
        })
        changes.push({ action: 'create', kind: 'limit', id: made.id, before: null, after: made })
      }
    }
    if (prune)
      for (const one of left) {
        await deleteLimit(tx, project_id, one.id)
        changes.push({ action: 'delete', kind: 'limit', id: one.id, before: showLimit(one), after: null })
      }
  }

  async function bringWebhooks(
    tx: Writer,
    holder: QuotaHolder,
    wanted: NonNullable<ApplyProject['webhooks']>,
    prune: boolean,
    changes: ProjectChange[],
  ): Promise<void> {
    const { project_id } = holder
    const now = clock.now()
    const made = wanted.map(({ url }, i) =>
      newWebhook(deps.webhooks, project_id, { url }, now, `webhooks[${i}].`),
    )
    rejectRepeated(
      made.map(({ row }) => row.url),
      'webhooks',
      'URL',
    )
    const there = await selectRows(tx, 'webhooks', { project_id, batch_id: null })
      .selectAll()
      .orderBy('id')
      .execute()
    const left = new Set(there)
    for (const [i, { row, secret }] of made.entries()) {
      const { event_types = null, description = null, enabled = true } = wanted[i]!
      const known = [...left].find(({ url }) => url === row.url)
      const change = webhookChange({ event_types, description, enabled }, known ?? row, now)
      if (!known) {
        await checkQuotas(tx, holder, { webhooks: 1 })
        const added: WebhookRow = { ...row, ...change }
        await insertRow(tx, 'webhooks', added)
        const after = { ...showWebhook(added), secret }
        changes.push({ action: 'create', kind: 'webhook', id: row.id, before: null, after })
        continue
      }
      left.delete(known)
      if (!differs(known, change)) continue
      const changed = await updateWebhook(tx, known.id, change)
      const shown = { before: showWebhook(known), after: showWebhook(changed) }
      changes.push({ action: 'update', kind: 'webhook', id: known.id, ...shown })
    }
    if (prune)
      for (const one of left) {
        await deleteWebhook(tx, one.id)
        changes.push({ action: 'delete', kind: 'webhook', id: one.id, before: showWebhook(one), after: null })
      }
  }
}

function keyOfLimit(row: Pick<LimitRow, 'scope' | 'subject' | 'model' | 'metric' | 'window'>): string {
  const { scope, subject, model, metric, window } = row
  return JSON.stringify([scope, subject, model, metric, window])
}

function rejectRepeated(keys: readonly string[], list: 'limits' | 'webhooks', what: string): void {
  const repeated = keys.findIndex((key, i) => keys.indexOf(key) < i)
  if (repeated === -1) return
  const first = keys.indexOf(keys[repeated]!)
  throw invalidParam(
    `${list}[${repeated}]`,
    `\`${list}[${repeated}]\` has the ${what} of \`${list}[${first}]\`.`,
  )
}

function differs<Row extends object>(row: Row, change: Partial<Row>): boolean {
  return Object.entries(change).some(([name, value]) => Reflect.get(row, name) !== value)
}

/** Runs `act`, whose errors name a parameter below `place`. */
async function at<T>(place: string, act: () => T | Promise<T>): Promise<T> {
  try {
    return await act()
  } catch (error) {
    if (!(error instanceof ApiError) || error.details.param === undefined) throw error
    throw new ApiError(error.code, error.message, { ...error.details, param: place + error.details.param })
  }
}
