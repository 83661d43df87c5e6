// The measured figures that `offpeak plan` calculates with, each with the command that measures it. docs/scaling.md
// shows the same figures; a test compares the two.

export interface Figure {
  value: number
  /** As docs/scaling.md writes it. */
  text: string
  command: string
}

export const FIGURES = {
  lines_per_s_of_a_worker: {
    value: 5000,
    text: '5,000 to 6,500 lines/s',
    command: 'node bench/dispatch.ts --lines 100000',
  },
  statements_per_1000_lines: { value: 16.3, text: 'up to 16.3', command: 'node bench/stores.ts' },
  idle_statements_per_s_of_a_worker: {
    value: 10,
    text: 'about ten short statements a second',
    command: 'node bench/stores.ts',
  },
  database_bytes_per_1000_lines: {
    value: 1475,
    text: '1,475 bytes',
    command: 'node bench/footprint.ts --lines 100000',
  },
  bucket_requests_per_1000_lines: {
    value: 3.6,
    text: '3.2, and 3.6 in the first round',
    command: 'node bench/stores.ts',
  },
  stored_share_of_input: {
    value: 0.355,
    text: '355 KB of input (a third of what was uploaded',
    command: 'node bench/footprint.ts --lines 100000',
  },
  stored_bytes_around_1000_answers: {
    value: 14_000,
    text: '14 KB around the answers',
    command: 'node bench/footprint.ts --lines 100000',
  },
  checked_bytes_per_s_of_a_core: {
    value: 360_000_000,
    text: '360 to 1,350 MB/s',
    command: 'node bench/ingest.ts --megabytes 100',
  },
  memory_mib_of_a_process: { value: 300, text: '300 MiB a process', command: 'node bench/memory.ts' },
} as const satisfies Record<string, Figure>

export type FigureName = keyof typeof FIGURES
