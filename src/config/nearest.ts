// The name that a misspelt one was probably meant to be.

/** The closest of `names` to `wrong`, or null when none is close enough to be worth suggesting. */
export function nearest(wrong: string, names: Iterable<string>): string | null {
  let best: string | null = null
  let bestDistance = Math.max(2, Math.floor(wrong.length / 3)) + 1
  for (const name of names) {
    const begun = wrong.length >= 4 && plain(name).startsWith(plain(wrong))
    const distance = begun ? 1 : editDistance(plain(wrong), plain(name))
    // A suggestion that shares less than half of its letters would only confuse.
    if (distance < bestDistance && distance * 2 <= name.length) {
      best = name
      bestDistance = distance
    }
  }
  return best
}

/** Case and the kind of dash are not what makes two names different. */
function plain(name: string): string {
  return name.toLowerCase().replaceAll('-', '_')
}

/** Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment). */
function editDistance(a: string, b: string): number {
  let before: number[] = []
  let last = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const row = [i]
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1]
      let cost = Math.min(row[j - 1]! + 1, last[j]! + 1, last[j - 1]! + (same ? 0 : 1))
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        cost = Math.min(cost, before[j - 2]! + 1)
      }
      row.push(cost)
    }
    before = last
    last = row
  }
  return last[b.length]!
}
