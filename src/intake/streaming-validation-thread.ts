// The thread in which uploads are read while they arrive, so that the API's event loop is free for other calls.
// Blocks travel both ways without being copied: each is given back once it has been read.
import { parentPort } from 'node:worker_threads'
import { StreamingValidator, type ValidFile } from './streaming-validator.ts'
import type { ValidationLimits } from './validation-first-pass.ts'

/** `id` names an upload. */
export type ToThread =
  | { id: number; begin: ValidationLimits }
  | { id: number; block: ArrayBuffer; bytes: number }
  | { id: number; end: true }
  | { id: number; drop: true }

export type FromThread = { id: number; free: ArrayBuffer } | { id: number; verdict: ValidFile | null }

/** Over all uploads together. Files beyond it, of three million lines or so, are validated afterwards. */
const IDS_BYTES_MAX = 32 * 1024 * 1024

const port = parentPort
if (port === null) throw new Error('this module is the body of a thread')
const readings = new Map<number, StreamingValidator>()

port.on('message', (order: ToThread) => {
  const { id } = order
  if ('begin' in order) {
    readings.set(id, new StreamingValidator(order.begin))
  } else if ('block' in order) {
    const reading = readings.get(id)
    if (reading && !(reading.push(Buffer.from(order.block, 0, order.bytes)) && hasRoom())) judge(id, null)
    tell({ id, free: order.block }, [order.block])
  } else if ('end' in order) {
    const reading = readings.get(id)
    if (reading) judge(id, reading.end())
  } else {
    readings.delete(id)
  }
})

function hasRoom(): boolean {
  let bytes = 0
  for (const reading of readings.values()) bytes += reading.ids_bytes
  return bytes <= IDS_BYTES_MAX
}

function judge(id: number, verdict: ValidFile | null): void {
  readings.delete(id)
  tell({ id, verdict })
}

function tell(message: FromThread, transfer: ArrayBuffer[] = []): void {
  port?.postMessage(message, transfer)
}
