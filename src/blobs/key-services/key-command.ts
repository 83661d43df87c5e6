// Programs that encrypt and decrypt a master key from standard input to standard output, without a shell.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { buffer, text } from 'node:stream/consumers'
import { CALL_MS_MAX, type KeyService } from '../key-service.ts'

interface KeyCommands {
  decrypt: readonly string[]
  /** The program that encrypts, with its arguments; null: an existing key can be read, and none be created. */
  encrypt: readonly string[] | null
}

export function keyCommand({ decrypt, encrypt }: KeyCommands): KeyService {
  return {
    name: `the command ${decrypt[0]}`,
    decrypt: (stored) => run(decrypt, stored),
    async encrypt(plain) {
      if (encrypt === null) throw new Error('master_key.encrypt is missing, so no key can be encrypted')
      return await run(encrypt, plain)
    },
  }
}

/** Runs a program. Returns its standard output; its standard error goes into the error's message only. */
async function run([program = '', ...words]: readonly string[], input: Buffer): Promise<Buffer> {
  const child = spawn(program, words, { stdio: 'pipe', timeout: CALL_MS_MAX, killSignal: 'SIGKILL' })
  // A program may exit without reading; its status shows an error.
  child.stdin.on('error', () => {})
  child.stdin.end(input)
  const [output, said, [status]] = await Promise.all([
    buffer(child.stdout),
    text(child.stderr),
    once(child, 'close'),
  ])
  if (status !== 0)
    throw new Error(`${program} ended with ${status ?? 'a signal'}: ${said.trim().slice(-200)}`)
  return output
}
