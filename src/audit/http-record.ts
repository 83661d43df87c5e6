// Keeps the record of every authenticated call. A record is committed before its response is sent, so whoever
// has received a response can read its record. It is a note, not a promise: the last of them may go with the power. Calls that end at the same time share a transaction: while one
// commit is on its way the next records gather, and go together. No secret is kept with them.

import { withoutSecrets } from '../domain/secret-text.ts'
import { insertHttpRequests } from '../store/http-requests.ts'
import type { HttpRequestRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'

interface Waiting {
  row: HttpRequestRow
  settle: { resolve: () => void; reject: (error: unknown) => void }
}

export class HttpRecords {
  readonly #store: Pick<Store, 'note'>
  #waiting: Waiting[] = []
  #writing = false

  constructor(store: Pick<Store, 'note'>) {
    this.#store = store
  }

  /** Resolves once the row can be read. */
  add(row: HttpRequestRow): Promise<void> {
    const { promise, ...settle } = Promise.withResolvers<void>()
    this.#waiting.push({ row: withoutItsSecrets(row), settle })
    if (!this.#writing) void this.#flush()
    return promise
  }

  async #flush(): Promise<void> {
    this.#writing = true
    while (this.#waiting.length > 0) {
      const group = this.#waiting
      this.#waiting = []
      try {
        await this.#store.note((tx) =>
          insertHttpRequests(
            tx,
            group.map(({ row }) => row),
          ),
        )
        for (const { settle } of group) settle.resolve()
      } catch (error) {
        for (const { settle } of group) settle.reject(error)
      }
    }
    this.#writing = false
  }
}

/** A secret that was shown once to its owner is not to be read here by whoever may read records. */
function withoutItsSecrets(row: HttpRequestRow): HttpRequestRow {
  const { path, entity, response } = row
  return {
    ...row,
    path: withoutSecrets(path),
    entity: entity === null ? null : withoutSecrets(entity),
    response: response === null ? null : withoutSecrets(response),
  }
}
