import type { MessageKey } from './en.ts'

export const messages: Readonly<Partial<Record<MessageKey, string>>> = {}
