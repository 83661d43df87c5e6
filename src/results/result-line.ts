// The lines of the output and error files, as bytes. `custom_id` is written as the input wrote it, and the
// model's answer is the text that came.
import type { WireError } from '../domain/errors.ts'

/** `body` is the JSON of the chat completion, on one line. */
export function outputLine(request_id: string, custom_id_json: string, body: string): Buffer {
  return asLine(
    `{"id":"${request_id}","custom_id":${custom_id_json},"response":{"status_code":200,"request_id":"${request_id}","body":${body}},"error":null}`,
  )
}

export function errorLine(request_id: string, custom_id_json: string, error: WireError): Buffer {
  return asLine(
    `{"id":"${request_id}","custom_id":${custom_id_json},"response":null,"error":${JSON.stringify(error)}}`,
  )
}

/** JSON text as one line of a JSONL file, its line break included. */
export function asLine(json: string): Buffer {
  return Buffer.from(`${json}\n`)
}
