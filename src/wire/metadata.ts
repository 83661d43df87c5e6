// Metadata of a batch or a line: a few short strings.
import { type Static, Type } from 'typebox'
import { STORABLE_PATTERN } from '../domain/storable-text.ts'
import {
  METADATA_KEY_CHARACTERS_MAX,
  METADATA_PAIRS_MAX,
  METADATA_VALUE_CHARACTERS_MAX,
} from '../jsonl/line-scan-metadata.ts'

/** Written out, since a Record of typebox bounds neither the number of keys nor their length. */
export const Metadata = Type.Unsafe<Record<string, string>>({
  type: 'object',
  title: 'Metadata',
  description:
    'Up to 16 pairs of strings. `entity` is the entity to attribute usage to, `conversation` groups the lines of one thread, `tags` is free text.',
  additionalProperties: {
    type: 'string',
    maxLength: METADATA_VALUE_CHARACTERS_MAX,
    pattern: STORABLE_PATTERN,
  },
  propertyNames: { maxLength: METADATA_KEY_CHARACTERS_MAX, pattern: STORABLE_PATTERN },
  maxProperties: METADATA_PAIRS_MAX,
  examples: [{ entity: 'user:42', tags: 'nightly', conversation: 'thread-7' }],
})

export type Metadata = Static<typeof Metadata>
