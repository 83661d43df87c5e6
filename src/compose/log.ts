// Structured logs on standard error; standard output is for the output of the command.
import { destination, type Logger, pino } from 'pino'
import type { Config } from '../config/config.ts'
import { SECRET_MARKER, withoutSecrets } from '../domain/secret-text.ts'
import { visibleLines } from '../domain/visible-text.ts'

/** Fields of a logged object that may contain a secret. */
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
      // Messages of libraries and errors may contain secrets and control characters; neither reaches the log.
      hooks: { streamWrite: (row) => visibleLines(withoutSecrets(row)) },
    },
    destination({ dest: 2, sync: true }),
  )
}
