/** Work on a whole database that cannot go on; the message says why and what to do. */
export class AdminCommandError extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'AdminCommandError'
  }
}
