// run --estimate: shows the projected cost of a file and the limits that apply to it, without creating a batch.
import { BatchEstimate } from '../../wire/batch.ts'
import { DeletedFile } from '../../wire/file.ts'
import type { Connection } from '../client/connect.ts'
import { endpointOfFile } from '../client/endpoint-of-file.ts'
import { uploadInput } from '../client/upload.ts'
import { type Watch, watchFile } from '../client/watch-batch.ts'
import { counted, humanCount, humanTime, humanUsd } from '../terminal/format.ts'
import { uploadLine } from '../terminal/progress-line.ts'
import { printTable } from '../terminal/table.ts'
import { type Output, paintFor, writeLine } from '../terminal/terminal.ts'
import { appliesTo, capText } from './limits.ts'
import { checkModel } from './models.ts'
import type { RunOrder } from './run-batch.ts'

/** Uploads the file, requests the estimate and deletes the file again. */
export async function estimateRun(
  { client }: Pick<Connection, 'client'>,
  order: RunOrder,
  watch: Watch,
): Promise<BatchEstimate> {
  await checkModel(client, order)
  const { file } = await uploadInput(client, order.input, (sent, total) =>
    watch.view.show('uploading', (columns, paint) => uploadLine(sent, total, columns, paint)),
  )
  try {
    await watchFile(client, file.id, watch)
    return await client.post(BatchEstimate, '/v1/batches?dry_run=true', {
      input_file_id: file.id,
      endpoint: await endpointOfFile(order.input),
      completion_window: order.window,
      ...(Object.keys(order.metadata).length === 0 ? {} : { metadata: order.metadata }),
    })
  } finally {
    // A file that a lost connection leaves costs nothing and is deleted after its retention.
    await client.delete(DeletedFile, `/v1/files/${file.id}`).catch(() => {})
  }
}

export function printEstimate(output: Output, estimate: BatchEstimate): void {
  const { lines, input_tokens, output_tokens_max, cost_usd, groups, limits, unpriced_models } = estimate
  writeLine(
    output,
    `${counted(lines, 'line')}, about ${counted(input_tokens, 'input token')}, at most ${counted(output_tokens_max, 'output token')}: at most ${humanUsd(cost_usd)}.`,
  )
  if (unpriced_models.length > 0)
    writeLine(output, `These models have no price and count as free: ${unpriced_models.join(', ')}.`)
  writeLine(output, '')
  printTable(
    output,
    ['LINES', 'INPUT', 'OUTPUT', 'COST', 'MODEL', 'ENTITY'],
    groups.map((group) => [
      humanCount(group.lines),
      humanCount(group.input_tokens),
      humanCount(group.output_tokens_max),
      group.priced ? humanUsd(group.cost_usd) : 'no price',
      group.model ?? '-',
      group.entity ?? '-',
    ]),
  )
  if (limits.length > 0) {
    writeLine(output, '')
    printTable(
      output,
      ['LIMIT', 'ENTITY', 'CAP', 'SPENT', 'PROJECTED', 'THIS FILE', 'ACTION', 'RESULT'],
      limits.map(limitRow),
    )
  }
  const refused = limits.find(({ limit, exceeds }) => exceeds && limit.action === 'block')
  if (estimate.accepted || !refused) return
  const until = humanTime(refused.resets_at)
  const text = `The batch would be refused: it would exceed ${refused.limit.id}, whose window ends at ${until} UTC.`
  writeLine(output, paintFor(output)('red', text))
}

function limitRow({
  limit,
  entity,
  spent,
  open,
  needed,
  exceeds,
}: BatchEstimate['limits'][number]): string[] {
  const amount = (value: number): string => capText({ metric: limit.metric, amount: value })
  const parts = [amount(limit.amount), amount(spent), amount(open), amount(needed)]
  return [limit.id, entity ?? appliesTo(limit), ...parts, limit.action, exceeds ? 'exceeded' : 'sufficient']
}
