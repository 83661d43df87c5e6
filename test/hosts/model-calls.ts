/** What the model server saw of a line. */
export interface ModelCall {
  text: string
  /** The address of the worker. */
  from: string
  /** When it arrived (Unix ms). */
  at: number
}
