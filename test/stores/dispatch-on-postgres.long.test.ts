// How lines are sent, paid for and kept through crashes, on PostgreSQL and a bucket. A file of its own, so that it runs beside
// the other.
import { runOnPostgres } from '../support/on-postgres.ts'

await runOnPostgres([
  ...['damage/crash.long', 'dispatch/capacity', 'money/limits', 'money/limits-processes.long'],
  ...['remote-batches/remote-batches', 'remote-batches/remote-batches.long'],
  'remote-batches/remote-webhooks.long',
])
