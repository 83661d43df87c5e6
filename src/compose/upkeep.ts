// What owners do with a database as a whole.
import type { Upkeep } from '../cli/launch.ts'
import { backup } from './backup.ts'
import { migrateData, releaseMoved } from './migrate-data.ts'
import { rekey } from './rekey.ts'

/** `variable` looks into the environment. */
export function upkeep(variable: (name: string) => string | undefined): Upkeep {
  return { rekey: (config, order) => rekey(config, order, variable), migrateData, releaseMoved, backup }
}
