// The entity to attribute usage to: any short text, without surrounding whitespace. `user:42`, `user/42` and
// `user_42` are entities of the type `user`.

interface Metadata {
  readonly [key: string]: string
}

/** The entity as it is stored and compared; null when the text is blank. */
export function trimmedEntity(text: string): string | null {
  return text.trim() || null
}

/** The entity of the line, else of the batch, else of the header. A blank text is no entity. */
export function entityOf(
  line_metadata: Metadata | null | undefined,
  batch_metadata: Metadata | null | undefined,
  header: string | null | undefined,
): string | null {
  return named(line_metadata) ?? named(batch_metadata) ?? trimmedEntity(header ?? '')
}

/** The text before the first `:`, `/` or `_`; null when the entity has no type. */
export function entityType(entity: string): string | null {
  const at = entity.search(/[:/_]/)
  return at > 0 && at < entity.length - 1 ? entity.slice(0, at) : null
}

function named(metadata: Metadata | null | undefined): string | null {
  if (!metadata || !Object.hasOwn(metadata, 'entity')) return null
  return trimmedEntity(metadata.entity ?? '')
}
