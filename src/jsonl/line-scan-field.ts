// A top-level field of a body: what it is read for, and what was found there.
import type { FieldRole } from '../domain/endpoint.ts'
import type { JsonKind } from './json-scan.ts'
import { type Span, setSpan } from './line-scan-span.ts'
import { TextsScan } from './line-scan-texts.ts'

/** The JSON number, whole or not; null where the field is absent or `null`, NaN where it is something else. */
export type NumberField = number | null

export class Field implements Span {
  readonly name: string
  readonly role: FieldRole
  /** Null where the field is absent; the span is empty then. */
  kind: JsonKind | null = null
  start = 0
  end = 0
  /** Of a field that should be a number. */
  number: NumberField = null
  /** Of a field of texts. */
  readonly texts: TextsScan | null

  constructor(name: string, role: FieldRole) {
    this.name = name
    this.role = role
    this.texts = role === 'texts' || role === 'documents' ? new TextsScan(role === 'documents') : null
  }

  get isGiven(): boolean {
    return this.kind !== null && this.kind !== 'null'
  }

  reset(): void {
    this.kind = null
    this.number = null
    setSpan(this, 0, 0)
  }
}
