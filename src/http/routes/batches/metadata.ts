// Metadata as it is stored: JSON text, or null where none was given.
import { Compile } from 'typebox/compile'
import { Metadata } from '../../../wire/metadata.ts'

const shape = Compile(Metadata)

export function readMetadata(json: string | null): Metadata {
  const stored: unknown = json === null ? {} : JSON.parse(json)
  return shape.Check(stored) ? stored : {}
}
