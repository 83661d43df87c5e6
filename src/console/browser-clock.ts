// The console's only source of time and of timers.

/** The current time in Unix ms. */
export const now = (): number => Date.now()

/** Calls `act` after `ms`. Returns a function that cancels the call. */
export function later(ms: number, act: () => void): () => void {
  const timer = setTimeout(act, ms)
  return () => clearTimeout(timer)
}

/** Calls `act` every `ms`. Returns a function that ends the calls. */
export function every(ms: number, act: () => void): () => void {
  const timer = setInterval(act, ms)
  return () => clearInterval(timer)
}
