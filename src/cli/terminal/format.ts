// Formats numbers and text for people, the same in every locale.

const SECOND_MS = 1000
const MINUTE_MS = 60 * SECOND_MS
const HOUR_MS = 60 * MINUTE_MS
const DAY_MS = 24 * HOUR_MS

/** `820ms`, `4.2s`, `2m 05s`, `1h 02m`, `3d 04h`. */
export function humanDuration(ms: number): string {
  if (ms < SECOND_MS) return `${Math.max(0, Math.round(ms))}ms`
  if (ms < 59_950) return ms < 9950 ? `${(ms / SECOND_MS).toFixed(1)}s` : `${Math.round(ms / SECOND_MS)}s`
  if (ms < HOUR_MS - SECOND_MS / 2) return pair(ms, MINUTE_MS, 'm', SECOND_MS, 's')
  if (ms < DAY_MS - MINUTE_MS / 2) return pair(ms, HOUR_MS, 'h', MINUTE_MS, 'm')
  return pair(ms, DAY_MS, 'd', HOUR_MS, 'h')
}

function pair(ms: number, bigMs: number, big: string, smallMs: number, small: string): string {
  const smalls = Math.round(ms / smallMs)
  const perBig = bigMs / smallMs
  return `${Math.floor(smalls / perBig)}${big} ${String(smalls % perBig).padStart(2, '0')}${small}`
}

/** `1,319`; a fraction is rounded away. */
export function humanCount(count: number): string {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+$)/g, ',')
}

/** With a decimal below ten lines a second: `0.4/s`, `312/s`, `12,400/s`. */
export function humanRate(linesPerSecond: number): string {
  return `${linesPerSecond < 9.95 ? linesPerSecond.toFixed(1) : humanCount(linesPerSecond)}/s`
}

/** Two decimals, and more for amounts below a dollar: `$12.40`, `$0.0432`, `$0.00000090`. */
export function humanUsd(usd: number): string {
  if (usd === 0) return '$0.00'
  if (usd >= 999.995) {
    const cents = Math.round(usd * 100)
    return `$${humanCount(Math.floor(cents / 100))}.${String(cents % 100).padStart(2, '0')}`
  }
  if (usd >= 0.995) return `$${usd.toFixed(2)}`
  const decimals = Math.min(9, 2 - Math.floor(Math.log10(usd)))
  return `$${usd.toFixed(decimals)}`
}

/** In powers of 1024: `832 B`, `1.2 MiB`. */
export function humanBytes(bytes: number): string {
  let value = bytes
  let unit = 0
  while (value >= 1023.5 && unit < BYTE_UNITS.length - 1) {
    value /= 1024
    unit++
  }
  return `${unit === 0 || value >= 99.95 ? Math.round(value) : value.toFixed(1)} ${BYTE_UNITS[unit]}`
}

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const

/** Unix seconds as `2026-01-31 08:15`, in UTC. */
export function humanTime(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return '-'
  return `${new Date(seconds * 1000).toISOString().slice(0, 16).replace('T', ' ')}`
}

/** `1 line`, `2 lines`. */
export function counted(count: number, noun: string): string {
  return `${humanCount(count)} ${noun}${count === 1 ? '' : 's'}`
}
