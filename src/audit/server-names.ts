// Callers read the names of model servers in records, not their addresses: a name that is made of an address, and a
// server that is no longer configured, are numbered.
import { type Model, serverNameOf } from '../domain/model.ts'

/** `record`: JSON of a line's audit record. */
export function withServerNames(record: Buffer, models: ReadonlyMap<string, Model>): Buffer {
  const { attempts, ...rest }: { attempts: { upstream: string }[]; upstream?: string } = JSON.parse(
    record.toString('utf8'),
  )
  const names = new Map<string, string>()
  const nameOf = (upstream: string): string => {
    const known = names.get(upstream) ?? serverNameOf(upstream, models)
    const name = known ?? `server-${names.size + 1}`
    names.set(upstream, name)
    return name
  }
  const shown = attempts.map((attempt) => ({ ...attempt, upstream: nameOf(attempt.upstream) }))
  const answered = rest.upstream === undefined ? {} : { upstream: nameOf(rest.upstream) }
  return Buffer.from(JSON.stringify({ ...rest, attempts: shown, ...answered }))
}
