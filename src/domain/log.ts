// The part of a logger that background work uses; pino's logger implements it.
export interface Log {
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
  error(fields: object, message: string): void
}
