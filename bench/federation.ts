// The cost of another Offpeak in between: lines per second of a batch at a cell, and of the same batch at a front whose
// only upstream is that cell, in pairs, so that what else the machine does falls on both. The cell's model server takes
// `--concurrency` lines at once, each for `--latency` ms. The front's part includes the upload of the lines to the cell;
// the upload of the caller's file is in neither. `cpu_s` is processor time per 1,000 lines: of the cell alone, and of
// cell and front when lines go through the front.
//
//   node bench/federation.ts [--lines 20000] [--pairs 5] [--latency 100] [--concurrency 256]
import { Bench, inTurns, median, option, rounded, runBatch, type Service } from './harness.ts'

const lines = option('lines', 20_000)
const bytes = option('bytes', 1024)
const latency = option('latency', 100)
const concurrency = option('concurrency', 256)
const pairs = option('pairs', 5)
await using bench = new Bench('federation')
const input = await bench.lines(lines, bytes)
const cell = await bench.service(`
models:
  - id: bench
    upstreams: [{type: sim, latency_ms: ${latency}, concurrency_max: ${concurrency}}]
`)
const front = await bench.service(
  `
models:
  - id: bench
    upstreams:
      - {type: openai-batch, base_url: "${cell.url}/v1", api_key_env: CELL_KEY, line_metadata: true}
`,
  { env: { CELL_KEY: cell.key } },
)

/** Lines per second of a batch at `at`, and processor time of each service (s) per 1,000 lines. */
async function run(
  at: Service,
  services: readonly Service[],
): Promise<{ lines_per_s: number; cpu: number[] }> {
  const file = await at.client.upload(input, 50)
  const before = services.map((service) => service.cpu_us())
  const { lines_per_s } = await runBatch(at, file)
  return { lines_per_s, cpu: services.map((service, i) => (service.cpu_us() - before[i]!) / lines / 1000) }
}

const [direct = [], through = []] = await inTurns(pairs, [
  () => run(cell, [cell]),
  () => run(front, [cell, front]),
])
const ratios = direct.map(({ lines_per_s }, i) => through[i]!.lines_per_s / lines_per_s)
console.table(
  direct.map((one, i) => ({
    'direct, lines/s': rounded(one.lines_per_s),
    'through a front, lines/s': rounded(through[i]!.lines_per_s),
    ratio: rounded(ratios[i]!),
    'direct, CPU s': rounded(one.cpu[0]!),
    'cell, CPU s': rounded(through[i]!.cpu[0]!),
    'front, CPU s': rounded(through[i]!.cpu[1]!),
  })),
)
console.log(`the cell could answer ${rounded((concurrency * 1000) / Math.max(1, latency))} lines/s`)
bench.figure('lines/s through a front ÷ directly', median(ratios), { atLeast: 0.97 })
