// Is the console's only source of time and of timers.

/** Unix milliseconds. */
export const now = (): number => Date.now()

/** Returns a function that cancels it. */
export function later(ms: number, act: () => void): () => void {
  const timer = setTimeout(act, ms)
  return () => clearTimeout(timer)
}

/** Returns a function that ends it. */
export function every(ms: number, act: () => void): () => void {
  const timer = setInterval(act, ms)
  return () => clearInterval(timer)
}
