// The thread that validates uploads while they arrive, so that the event loop of the API is free for other calls.
// Blocks are transferred without being copied, and returned after they were read.
import { parentPort, workerData } from 'node:worker_threads'
import { declareEndpoints } from '../domain/endpoint.ts'
import type { Entries } from '../jsonl/custom-ids.ts'
import { StreamingValidator, type ValidationLimits, type ValidFile } from './validation.ts'

/** What a message to the validation thread says about an upload that has begun. */
export type Order = { block: ArrayBuffer; bytes: number } | { end: true } | { drop: true }

/** A message to the validation thread; `id` names an upload. */
export type ToThread = { id: number } & (Order | { begin: ValidationLimits })

/** A message from the validation thread; `ids`: the custom_ids of a part of the file. */
export type FromThread =
  | { id: number; free: ArrayBuffer }
  | { id: number; ids: Entries[] }
  | { id: number; verdict: ValidFile | null }

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
    if (validator && !validator.push(Buffer.from(order.block, 0, order.bytes))) answer(id, null)
    const ids = validators.get(id)?.takeIds()
    if (ids) send({ id, ids }, buffersOf(ids))
    send({ id, free: order.block }, [order.block])
  } else if ('end' in order) {
    const validator = validators.get(id)
    if (validator) answer(id, validator.end())
  } else {
    validators.delete(id)
  }
})

function answer(id: number, verdict: ValidFile | null): void {
  validators.delete(id)
  send({ id, verdict }, buffersOf(verdict?.ids ?? []))
}

function buffersOf(ids: readonly Entries[]): ArrayBuffer[] {
  return ids.map(({ buffer }) => buffer)
}

function send(message: FromThread, transfer: ArrayBuffer[] = []): void {
  port?.postMessage(message, transfer)
}
