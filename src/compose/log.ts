// Structured logs on standard error: standard output belongs to the command's own words.
import { destination, type Logger, pino } from 'pino'
import type { Config } from '../config/config.ts'

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
      redact: { paths: SECRETS, censor: '[secret]' },
      hooks: { streamWrite: withoutKeys },
    },
    destination({ dest: 2, sync: true }),
  )
}

/** Whatever a library or an error's message may carry into the log, no API key comes out of it. */
function withoutKeys(row: string): string {
  return row.replaceAll(/\bopk_[a-z0-9-]+_[0-9a-z]{26}_[\w-]+/g, '[secret]')
}
