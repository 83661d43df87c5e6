// Sizes as people write them: `8MiB` is 8 × 1024², `8MB` is 8 × 1000², a bare number is bytes.

const UNIT_BYTES = {
  '': 1,
  B: 1,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
}

type Unit = keyof typeof UNIT_BYTES

/** Bytes, or null when `text` is no size. */
export function sizeBytes(text: string): number | null {
  const match = /^(\d+) ?([A-Za-z]*)$/.exec(text)
  if (match === null) return null
  const [, digits, unit] = match
  if (digits === undefined || unit === undefined || !isUnit(unit)) return null
  const bytes = Number(digits) * UNIT_BYTES[unit]
  return Number.isSafeInteger(bytes) ? bytes : null
}

function isUnit(unit: string): unit is Unit {
  return Object.hasOwn(UNIT_BYTES, unit)
}

/** The shortest exact way to write `bytes`, in powers of 1024: 8388608 is `8MiB`. */
export function sizeText(bytes: number): string {
  for (const unit of ['TiB', 'GiB', 'MiB', 'KiB'] as const) {
    if (bytes > 0 && bytes % UNIT_BYTES[unit] === 0) return `${bytes / UNIT_BYTES[unit]}${unit}`
  }
  return `${bytes}B`
}
