// The thread that validates uploads while they arrive, so that the event loop of the API is free for other calls.
// Blocks are transferred without being copied, and returned after they were read.
import { parentPort, workerData } from 'node:worker_threads'
import { declareEndpoints } from '../domain/endpoint.ts'
import { StreamingValidator, type ValidationLimits, type ValidFile } from './validation.ts'

/** `id` names an upload. */
export type ToThread =
  | { id: number; begin: ValidationLimits }
  | { id: number; block: ArrayBuffer; bytes: number }
  | { id: number; end: true }
  | { id: number; drop: true }

export type FromThread = { id: number; free: ArrayBuffer } | { id: number; verdict: ValidFile | null }

/** The limit for all uploads together. Larger files, of about two million lines, are validated afterwards. */
const IDS_BYTES_MAX = 32 * 1024 * 1024

const port = parentPort
if (port === null) throw new Error('this module is the body of a thread')
declareEndpoints(workerData)
const validators = new Map<number, StreamingValidator>()

port.on('message', (order: ToThread) => {
  const { id } = order
  if ('begin' in order) {
    validators.set(id, new StreamingValidator(order.begin))
  } else if ('block' in order) {
    const validator = validators.get(id)
    if (validator && !(validator.push(Buffer.from(order.block, 0, order.bytes)) && hasRoom()))
      answer(id, null)
    send({ id, free: order.block }, [order.block])
  } else if ('end' in order) {
    const validator = validators.get(id)
    if (validator) answer(id, validator.end())
  } else {
    validators.delete(id)
  }
})

function hasRoom(): boolean {
  let bytes = 0
  for (const validator of validators.values()) bytes += validator.ids_bytes
  return bytes <= IDS_BYTES_MAX
}

function answer(id: number, verdict: ValidFile | null): void {
  validators.delete(id)
  send(
    { id, verdict },
    verdict?.custom_ids.map(({ buffer }) => buffer),
  )
}

function send(message: FromThread, transfer: ArrayBuffer[] = []): void {
  port?.postMessage(message, transfer)
}
