// Keeps the record of every authenticated call. A record is committed before its response is sent, so whoever
// has received a response can read its record. No secret is kept with it.
import { withoutSecrets } from '../domain/secret-text.ts'
import { insertHttpRequests } from '../store/calls.ts'
import type { HttpRequestRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { GroupedWrites } from './grouped-writes.ts'

export class HttpRecords {
  readonly #writes: GroupedWrites<HttpRequestRow>

  constructor(store: Pick<Store, 'writeAsyncCommit'>) {
    this.#writes = new GroupedWrites(store, insertHttpRequests)
  }

  /** Resolves once the row can be read. */
  add(row: HttpRequestRow): Promise<void> {
    return this.#writes.add(withoutItsSecrets(row))
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
