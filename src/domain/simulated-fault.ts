// The faults that the simulated model server can make. `429`, `500`, `503`: that status. `hang`: never answers.
// `reset`: breaks the connection. `garbage`: a 200 without a completion. `missing_usage`: no token counts.
// `off_schema`: an object without the fields that the JSON Schema of the request has.

export const SIMULATED_FAULTS = [
  '429',
  '500',
  '503',
  'hang',
  'reset',
  'garbage',
  'missing_usage',
  'off_schema',
] as const
export type SimulatedFault = (typeof SIMULATED_FAULTS)[number]

/** The fraction of requests, 0 to 1, that meets each fault. */
export type FaultRates = Readonly<Partial<Record<SimulatedFault, number>>>
