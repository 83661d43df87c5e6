// Rows that are written along the way, by the group: while one commit is on its way the next rows gather, and go
// together. They are written with an
// asynchronous commit, so a power failure may lose the last of them.
import type { Store, Writer } from '../store/store.ts'

interface Waiting<Row> {
  row: Row
  settle: { resolve: () => void; reject: (error: unknown) => void }
}

export class GroupedWrites<Row> {
  readonly #store: Pick<Store, 'writeAsyncCommit'>
  readonly #insert: (tx: Writer, rows: readonly Row[]) => Promise<void>
  #waiting: Waiting<Row>[] = []
  #writing = false

  constructor(
    store: Pick<Store, 'writeAsyncCommit'>,
    insert: (tx: Writer, rows: readonly Row[]) => Promise<void>,
  ) {
    this.#store = store
    this.#insert = insert
  }

  /** Resolves once the row can be read. */
  add(row: Row): Promise<void> {
    const { promise, ...settle } = Promise.withResolvers<void>()
    this.#waiting.push({ row, settle })
    if (!this.#writing) void this.#flush()
    return promise
  }

  async #flush(): Promise<void> {
    this.#writing = true
    while (this.#waiting.length > 0) {
      const group = this.#waiting
      this.#waiting = []
      try {
        await this.#store.writeAsyncCommit((tx) =>
          this.#insert(
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
