// The words in which schema.ts describes columns: migrate.ts makes tables of them, and they type every query.
import type { Generated } from 'kysely'

interface Traits {
  isKey?: true
  isNullable?: true
  isUnique?: true
  initial?: string | number
  /** The table whose `id` it holds. */
  references?: string
  /** The number of the migration that adds it; the first one if not given. */
  since?: number
}

/** `Stored` is its type for Kysely. */
export class Column<Stored> {
  declare readonly stored: Stored
  readonly kind: 'text' | 'bigint' | 'integer' | 'double precision'
  readonly traits: Traits

  constructor(kind: Column<Stored>['kind'], traits: Traits = {}) {
    this.kind = kind
    this.traits = traits
  }

  #with<Other>(trait: Traits): Column<Other> {
    return new Column(this.kind, { ...this.traits, ...trait })
  }

  /** The columns of a table with this trait are its primary key, in their order. */
  key(): Column<Stored> {
    return this.#with({ isKey: true })
  }

  optional(): Column<Generated<Stored | null>> {
    return this.#with({ isNullable: true })
  }

  /** What it is in a row that is inserted without it. */
  or(initial: string | number): Column<Generated<Stored>> {
    return this.#with({ initial })
  }

  unique(): Column<Stored> {
    return this.#with({ isUnique: true })
  }

  references(table: string): Column<Stored> {
    return this.#with({ references: table })
  }

  since(migration: number): Column<Stored> {
    return this.#with({ since: migration })
  }
}

export const text = <Value extends string = string>() => new Column<Value>('text')
export const whole = () => new Column<number>('bigint')
export const integer = () => new Column<number>('integer')
export const double = () => new Column<number>('double precision')
export const counter = () => whole().or(0)

export type Columns = Readonly<Record<string, Column<unknown>>>

/** The columns of a table that a later migration than the first makes. */
export function tableSince<C extends Columns>(migration: number, columns: C): C {
  for (const { traits } of Object.values(columns)) traits.since ??= migration
  return columns
}

export interface Index {
  table: string
  /** Columns, as SQL. */
  on: string
  /** The condition of a partial index, as SQL. */
  where?: string
  since?: number
}
