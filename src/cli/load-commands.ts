// Loads the files of commands. A call of one command loads its file alone, which takes a fifth of the time that all of
// them take; the help, and the suggestions for a misspelt command, need all.
import type { Command } from 'commander'
import type { Shell } from './shell.ts'

type AddCommand = (program: Command, shell: Shell) => void

/** By the names of the commands that a file adds, in the order of the help. */
const FILES: readonly [names: readonly string[], load: () => Promise<AddCommand>][] = [
  [['serve', 'api', 'worker'], async () => (await import('./commands/serve.ts')).addServe],
  [['run'], async () => (await import('./commands/run.ts')).addRun],
  [['prepare'], async () => (await import('./commands/prepare.ts')).addPrepare],
  [['results'], async () => (await import('./commands/results.ts')).addResults],
  [['retry'], async () => (await import('./commands/retry.ts')).addRetry],
  [['next-round'], async () => (await import('./commands/next-round.ts')).addNextRound],
  [['console'], async () => (await import('./commands/console.ts')).addConsole],
  [['files'], async () => (await import('./commands/files.ts')).addFiles],
  [['batches'], async () => (await import('./commands/batches.ts')).addBatches],
  [['requests'], async () => (await import('./commands/requests.ts')).addRequests],
  [['models'], async () => (await import('./commands/models.ts')).addModels],
  [['limits'], async () => (await import('./commands/limits.ts')).addLimits],
  [['usage'], async () => (await import('./commands/usage.ts')).addUsage],
  [['quotas'], async () => (await import('./commands/quotas.ts')).addQuotas],
  [['webhooks'], async () => (await import('./commands/webhooks.ts')).addWebhooks],
  [['events'], async () => (await import('./commands/events.ts')).addEvents],
  [['keys'], async () => (await import('./commands/keys.ts')).addKeys],
  [['config'], async () => (await import('./commands/config.ts')).addConfig],
  [['reload'], async () => (await import('./commands/reload.ts')).addReload],
  [['doctor'], async () => (await import('./commands/doctor.ts')).addDoctor],
  [['plan'], async () => (await import('./commands/plan.ts')).addPlan],
  [['backup'], async () => (await import('./commands/backup.ts')).addBackup],
  [['rekey'], async () => (await import('./commands/rekey.ts')).addRekey],
  [['migrate-data'], async () => (await import('./commands/migrate-data.ts')).addMigrateData],
  [['sim'], async () => (await import('./commands/sim.ts')).addSim],
]

/** Adds the command `name`; without one, or when there is none of that name, every command. */
export function loadCommands(name: string | undefined): Promise<AddCommand[]> {
  const named = FILES.filter(([names]) => name !== undefined && names.includes(name))
  return Promise.all((named.length > 0 ? named : FILES).map(([, load]) => load()))
}
