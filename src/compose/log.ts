// Logs to standard error, as JSON or as text for people. Standard output is for the output of the command.
import { createRequire } from 'node:module'
import { isatty } from 'node:tty'
import { type DestinationStream, destination, type Logger, pino } from 'pino'
import type { Config } from '../config/config.ts'
import { SECRET_MARKER, visible, visibleLines, withoutSecrets, withoutUrlSecrets } from '../domain/text.ts'

/** The fields of a logged object that may contain a secret. */
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

const STDERR = 2

export function makeLog(config: Pick<Config, 'log' | 'region'>): Logger {
  return pino(
    {
      level: config.log.level,
      base: { region: config.region },
      redact: { paths: SECRETS, censor: SECRET_MARKER },
      // Secrets and control characters in messages of libraries and errors are removed from the log.
      hooks: { streamWrite: (row) => visibleLines(withoutUrlSecrets(withoutSecrets(row))) },
    },
    isatty(STDERR) ? readable() : destination({ dest: STDERR, sync: true }),
  )
}

/** Makes the text format of log rows, and escapes control characters, which parsing has restored from JSON. */
export function textFormat(): (row: string) => string {
  // Loaded only for a terminal: most services log JSON.
  const { prettyFactory }: typeof import('pino-pretty') = createRequire(import.meta.url)('pino-pretty')
  const format = prettyFactory({
    colorize: false,
    ignore: 'pid,region',
    translateTime: 'SYS:HH:MM:ss.l',
    // A message with a line break would look like two.
    messageFormat: (row, key) => visible(String(row[key] ?? '')),
  })
  return (row) => visibleLines(format(row))
}

function readable(): DestinationStream {
  const output = destination({ dest: STDERR, sync: true })
  const asText = textFormat()
  return { write: (row) => void output.write(asText(row)) }
}
