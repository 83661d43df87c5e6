// Whom work is for. An entity is any short text, less the whitespace around it; `user:42`, `user/42` and `user_42` also say its type.

interface Metadata {
  readonly [key: string]: string
}

/** The entity as it is stored and compared, without the whitespace around it; null where nothing else is there. */
export function trimmedEntity(text: string): string | null {
  return text.trim() || null
}

/** The line's own entity, else the batch's, else the header's. A blank text names nobody. */
export function entityOf(
  line_metadata: Metadata | null | undefined,
  batch_metadata: Metadata | null | undefined,
  header: string | null | undefined,
): string | null {
  return named(line_metadata) ?? named(batch_metadata) ?? trimmedEntity(header ?? '')
}

/** What stands before the first `:`, `/` or `_`; null when the entity has no type. */
export function entityType(entity: string): string | null {
  const at = entity.search(/[:/_]/)
  return at > 0 && at < entity.length - 1 ? entity.slice(0, at) : null
}

function named(metadata: Metadata | null | undefined): string | null {
  if (!metadata || !Object.hasOwn(metadata, 'entity')) return null
  return trimmedEntity(metadata.entity ?? '')
}
