// Ends what a call has taken when the call is over.
import type { ServerResponse } from 'node:http'

/** Runs `act` once the answer has been sent or its caller has left; a caller may have left before. */
export function whenClosed(answer: ServerResponse, act: () => void): void {
  if (answer.destroyed) act()
  else answer.once('close', act)
}
