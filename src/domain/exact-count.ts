// Saturating sums: whole numbers that stop at 2^53 - 1, the largest number that JavaScript, JSON and every database
// represent exactly. A database would reject a larger sum, and with it every other result of the same commit.
//
// For counts that are not negative the order of additions makes no difference.

export const COUNT_MAX = Number.MAX_SAFE_INTEGER

/** `count`, or the largest count if it is larger. */
export function atMost(count: number): number {
  return Math.min(count, COUNT_MAX)
}

/** The sum of counts, and of changes of counts. */
export function sumOf(a: number, b: number): number {
  return Math.max(-COUNT_MAX, atMost(a + b))
}
