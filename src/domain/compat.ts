// How the API renders its objects: in its own form, or such that all that a client of OpenAI's Batch API may assume of
// them holds. A key has a form, and a call can ask for another one.

export const COMPAT_MODES = ['openai'] as const
export type CompatMode = (typeof COMPAT_MODES)[number]

export function isCompatMode(text: string): text is CompatMode {
  return COMPAT_MODES.some((mode) => mode === text)
}
