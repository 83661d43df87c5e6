// The port of services that keep a master key: they encrypt and decrypt it, and a file has the encrypted key. A process
// calls the service once, at its start, so an outage of the service stops no running process.

export interface KeyService {
  /** The name of the key service and its key, in messages. */
  readonly name: string
  /** Encrypts the master key. Returns the text or bytes for the file. */
  encrypt(key: Buffer): Promise<Buffer>
  decrypt(stored: Buffer): Promise<Buffer>
}

/** The timeout of a call to a key service in ms. */
export const CALL_MS_MAX = 10_000
