// A batch API as the dispatcher knows model servers: by name, with circuit and tier. Lines are handed over to it by the
// chunk; sending it a single one is a mistake.
import type { Backend } from '../backend.ts'
import type { BatchApi } from '../batch-api/batch-api.ts'

export function batchApiBackend(name: string, batches: BatchApi): Backend {
  return {
    name,
    batches,
    async send() {
      throw new Error('a batch API takes no single lines')
    },
    close: () => batches.close(),
  }
}
