// Calls that keys have taken in their current windows. One row per key, whose window begins with the first call
// after the last one has ended, by the database's clock: all API processes count in the same window.
import type { ClaimSql, Writer } from './store.ts'

export interface Taken {
  /** In this window so far, these calls included, however many more than allowed that is. */
  taken: number
  /** Until the window ends. */
  left_ms: number
}

/** Takes `calls` for the key at once. */
export async function takeCalls(
  tx: Writer,
  { now }: ClaimSql,
  key_id: string,
  calls: number,
  window_ms: number,
): Promise<Taken> {
  return await tx
    .insertInto('rate_windows')
    .values((eb) => ({ key_id, taken: calls, ends: eb(now, '+', window_ms) }))
    .onConflict((oc) =>
      oc.column('key_id').doUpdateSet((eb) => {
        const over = eb('rate_windows.ends', '<=', now)
        return {
          taken: eb
            .case()
            .when(over)
            .then(eb.ref('excluded.taken'))
            .else(eb('rate_windows.taken', '+', eb.ref('excluded.taken')))
            .end(),
          ends: eb.case().when(over).then(eb.ref('excluded.ends')).else(eb.ref('rate_windows.ends')).end(),
        }
      }),
    )
    .returning((eb) => ['taken', eb('ends', '-', now).as('left_ms')])
    .executeTakeFirstOrThrow()
}
