// What owners do with a database as a whole.
import type { AdminCommands } from '../cli/launch.ts'
import { backup } from './backup.ts'
import { migrateData, releaseMoved } from './migrate-data.ts'
import { rekey } from './rekey.ts'

/** `variable` looks into the environment. */
export function adminCommands(variable: (name: string) => string | undefined): AdminCommands {
  return { rekey: (config, order) => rekey(config, order, variable), migrateData, releaseMoved, backup }
}
