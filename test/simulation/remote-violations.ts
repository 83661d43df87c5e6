// What is checked of batches at batch APIs when a run has ended: nothing goes on there that nobody will collect, and no row
// waits for anything.
import type { SimulatedRun } from './run.ts'

export async function remoteViolations({ store, servers }: SimulatedRun): Promise<string[]> {
  const found: string[] = []
  const rows = await store.read.selectFrom('remote_batches').selectAll().execute()
  for (const row of rows) {
    const { id, state, status, reserved, remote_id, upstream, model } = row
    if (state !== 'done') found.push(`the remote batch ${id} is still ${state}`)
    if (reserved !== null) found.push(`the remote batch ${id} still reserves ${reserved}`)
    // While its batch API is not configured for the model, nobody can cancel it.
    if (status !== 'abandoned' || servers.removed.has(upstream) || servers.removed.has(model)) continue
    // Nor is there anything to cancel where there are results, read or not: it had ended.
    if (row.answered > 0 || (row.output_file_id ?? row.error_file_id) !== null) continue
    const api = servers.apis.find(({ name }) => name === upstream)
    // Nor one whose ID nobody knows, where batches cannot be listed.
    if (api === undefined || (remote_id === null && api.cannotList)) continue
    for (const one of api.batches.filter((one) =>
      remote_id === null ? one.name === id : one.id === remote_id,
    ))
      if (!one.cancelAsked && !one.forgotten && !one.isUnknown)
        found.push(`${one.id} was given up and not cancelled at ${upstream}`)
  }
  const recorded = new Map(rows.map(({ remote_id, answered }) => [remote_id ?? '', answered]))
  for (const cell of servers.cells) found.push(...(await cell.violations(recorded)))
  const modelOf = new Map(rows.map(({ id, model }) => [id, model]))
  for (const { name: upstream, batches } of servers.apis)
    for (const { id, name, shownAsSecond, cancelAsked, forgotten } of batches) {
      if (servers.removed.has(upstream) || servers.removed.has(modelOf.get(name) ?? '')) continue
      if (shownAsSecond && !cancelAsked && !forgotten)
        found.push(`${id} was the second of its name at ${upstream} and not cancelled`)
    }
  return found
}
