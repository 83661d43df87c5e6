// Structured logs on standard error: standard output belongs to the command's own words.
import { destination, type Logger, pino } from 'pino'
import type { Config } from '../config/config.ts'
import { SECRET_MARKER, withoutSecrets } from '../domain/secret-text.ts'
import { visibleLines } from '../domain/visible-text.ts'

/** Wherever a secret might travel in a logged object. */
const SECRETS = [
  'authorization',
  'headers.authorization',
  '*.headers.authorization',
  'api_key',
  'key',
  'secret',
  'wrapped_key',
  'master_key',
]

export function makeLog(config: Pick<Config, 'log' | 'region'>): Logger {
  return pino(
    {
      level: config.log.level,
      base: { region: config.region },
      redact: { paths: SECRETS, censor: SECRET_MARKER },
      // Whatever a library or an error's message may carry into the log, no secret comes out of it, and nothing that
      // acts on the terminal of its reader.
      hooks: { streamWrite: (row) => visibleLines(withoutSecrets(row)) },
    },
    destination({ dest: 2, sync: true }),
  )
}
