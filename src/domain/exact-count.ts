// Counts that are added up for months: whole numbers that stop at the largest one that is exact in JavaScript,
// JSON and every database, 2^53 - 1. A sum that stopped is too small, but it can be stored, read and compared; one
// that went on would be refused by the database, with every other result of its commit.
//
// Sums of counts that are not negative can be cut off in any order: the sum of cut sums, cut again, is the cut sum.

export const COUNT_MAX = Number.MAX_SAFE_INTEGER

/** `count`, or the largest count if it is larger. */
export function atMost(count: number): number {
  return Math.min(count, COUNT_MAX)
}

/** The sum of counts, and of changes of counts. */
export function sumOf(a: number, b: number): number {
  return Math.max(-COUNT_MAX, atMost(a + b))
}
