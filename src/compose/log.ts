// Structured logs on standard error: standard output belongs to the command's own words.
import { destination, type Logger, pino } from 'pino'
import type { Config } from '../config/config.ts'

/** Wherever a secret might travel in a logged object. */
const SECRETS = [
  'authorization',
  'headers.authorization',
  'req.headers.authorization',
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
      redact: { paths: SECRETS, censor: '[secret]' },
    },
    destination({ dest: 2, sync: true }),
  )
}
