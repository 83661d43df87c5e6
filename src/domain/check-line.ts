// What makes a well-formed line fail alone, before it costs anything: a body that cannot run on its model.
import type { WireError } from './errors.ts'
import type { InputLine } from './line-scan.ts'
import type { Model } from './model.ts'

/** The error the line ends with, or null when it may be sent. */
export function checkLine(_line: InputLine, _models: ReadonlyMap<string, Model>): WireError | null {
  throw new Error('not written yet')
}
