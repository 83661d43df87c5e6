// The port of services that keep a master key: they encrypt it and decrypt it, and what they made of it lies in a file. Each
// process asks once, when it starts, so that an outage of the service keeps processes from starting and stops none.

export interface KeyService {
  /** It and its key, in messages. */
  readonly name: string
  /** The text or bytes to keep in the file. */
  encrypt(key: Buffer): Promise<Buffer>
  decrypt(stored: Buffer): Promise<Buffer>
}

/** How long a call may take. */
export const CALL_MS_MAX = 10_000
