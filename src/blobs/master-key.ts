// The master key, which wraps the data key of every blob. It comes as text (an environment variable, read by config/),
// or from a file: in plain text, readable by its owner alone, or encrypted by a service. It is never printed: its bytes
// stay inside a KeyObject, and messages show the key's ID.
import { createHmac, createSecretKey, type KeyObject, randomBytes, randomUUID } from 'node:crypto'
import { constants } from 'node:fs'
import { link, open, rename, unlink } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { ExplainedError, messageOf } from '../domain/errors.ts'
import { errnoOf, makeFolder, syncFolder } from './folders.ts'
import type { KeyService } from './key-service.ts'

const KEY_BYTES = 32
/** The largest key file in bytes: base64 of a key and encrypted keys are far smaller. */
const FILE_BYTES_MAX = 64 * 1024
const OTHERS_MAY = 0o077
const HOW_TO_MAKE = 'make one with: openssl rand -base64 32'

export interface MasterKey {
  /** The ID of the master key: 16 hex digits that reveal nothing about it. */
  readonly id: string
  readonly secret: KeyObject
}

/** The error for a missing or unusable master key. Its message has the source and the fix, and no text of the key. */
export class MasterKeyError extends ExplainedError {
  constructor(message: string, cause?: unknown) {
    super(message, { cause })
    this.name = 'MasterKeyError'
  }
}

/**
 * Parses a key of 32 bytes as base64, base64url or hex. `where` names its source in errors, for example
 * "OFFPEAK_MASTER_KEY". Throws MasterKeyError.
 */
export function masterKeyFromText(text: string, where: string): MasterKey {
  const spelled = text.trim()
  if (spelled === '') throw new MasterKeyError(`${where} is empty; ${HOW_TO_MAKE}`)
  const bytes = decode(spelled)
  if (bytes === null) {
    throw new MasterKeyError(
      `${where} is not ${KEY_BYTES} bytes in base64, base64url or hex (it has ${spelled.length} characters); ${HOW_TO_MAKE}`,
    )
  }
  return masterKeyOf(bytes, where)
}

function masterKeyOf(bytes: Buffer, where: string): MasterKey {
  if (bytes.every((byte) => byte === bytes[0]))
    throw new MasterKeyError(`${where} is one byte repeated, which anybody can guess; ${HOW_TO_MAKE}`)
  const secret = createSecretKey(bytes)
  const id = createHmac('sha256', secret).update('offpeak master key id').digest('hex').slice(0, 16)
  return { id, secret }
}

/** The file of a master key, and the service that encrypted it; null: the file is in plain text. */
export interface KeyPlace {
  path: string
  service: KeyService | null
}

/** Reads a master key from its file, which only its owner may read unless it is encrypted. Throws MasterKeyError. */
export async function readMasterKey(path: string, service: KeyService | null = null): Promise<MasterKey> {
  const key = await readIfThere(path, service)
  if (key !== null) return key
  throw new MasterKeyError(
    service === null
      ? `there is no master key at ${path}; restore the file, or set OFFPEAK_MASTER_KEY to the key it held`
      : `there is no encrypted master key at ${path}; restore the file`,
  )
}

/** Reads a master key from its file, or creates it on first start; processes that start at once get the same key. */
export async function readOrCreateMasterKey(
  path: string,
  service: KeyService | null = null,
): Promise<MasterKey> {
  const there = await readIfThere(path, service)
  if (there !== null) return there
  // The first of several concurrent writers wins.
  await writeMasterKey({ path, service }, randomBytes(KEY_BYTES), async (temporary) => {
    await link(temporary, path).catch((cause) => {
      if (cause.code !== 'EEXIST') throw cause
    })
    await unlink(temporary)
  })
  return await readMasterKey(path, service)
}

/** Writes a key to its file atomically; `publish` gives the file its name, by default in place of an existing file. */
export async function writeMasterKey(
  { path, service }: KeyPlace,
  key: Buffer,
  publish = (temporary: string): Promise<void> => rename(temporary, path),
): Promise<void> {
  const folder = dirname(resolve(path))
  const temporary = join(folder, `.master-key-${randomUUID()}`)
  try {
    const stored = service === null ? `${key.toString('base64url')}\n` : await service.encrypt(key)
    makeFolder(folder)
    {
      await using file = await open(temporary, 'wx', 0o600)
      await file.writeFile(stored)
      await file.sync()
    }
    await publish(temporary)
    await syncFolder(folder)
  } catch (cause) {
    await unlink(temporary).catch(() => {})
    throw new MasterKeyError(
      `cannot write a new master key to ${path} (${messageOf(cause)}); ${service === null ? 'make its folder writable, or set OFFPEAK_MASTER_KEY' : `make its folder writable, and allow this identity to encrypt with ${service.name}`}`,
      cause,
    )
  }
}

function decode(text: string): Buffer | null {
  if (/^[0-9a-fA-F]{64}$/.test(text)) return Buffer.from(text, 'hex')
  // Node reads base64 and base64url alike.
  if (/^[A-Za-z0-9+/_-]{43}=?$/.test(text)) return Buffer.from(text, 'base64')
  return null
}

async function readIfThere(path: string, service: KeyService | null): Promise<MasterKey | null> {
  let stored: Buffer
  try {
    await using file = await open(path, constants.O_RDONLY)
    const { mode, size } = await file.stat()
    // Windows has no such bits and reports every file as open to all users.
    if (service === null && process.platform !== 'win32' && mode & OTHERS_MAY) {
      throw new MasterKeyError(
        `the master key ${path} is open to other users (mode ${(mode & 0o777).toString(8).padStart(4, '0')}); run: chmod 600 ${path}`,
      )
    }
    if (size > FILE_BYTES_MAX) throw new MasterKeyError(`${path} is no master key: it has ${size} bytes`)
    stored = await file.readFile()
  } catch (cause) {
    if (cause instanceof MasterKeyError) throw cause
    if (errnoOf(cause) === 'ENOENT') return null
    throw new MasterKeyError(`cannot read the master key ${path} (${messageOf(cause)})`, cause)
  }
  if (service === null) return masterKeyFromText(stored.toString('utf8'), `the master key file ${path}`)
  const where = `what ${service.name} made of ${path}`
  const opened = await service.decrypt(stored).catch((cause) => {
    throw new MasterKeyError(
      `${service.name} did not decrypt the master key ${path} (${messageOf(cause)}); this process starts once it does, and running ones go on without it`,
      cause,
    )
  })
  // Services encrypt 32 bytes or their text.
  return opened.length === KEY_BYTES
    ? masterKeyOf(opened, where)
    : masterKeyFromText(opened.toString(), where)
}
