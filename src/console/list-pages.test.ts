import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { ListPages } from './list-pages.ts'

/** A list of the numbers below `total`, in pages of ten; `asked` has the cursors. */
function numbers(total: number, numbered = false) {
  const asked: (string | null)[] = []
  let failing = false
  const pages = new ListPages<number>({
    name: 'numbers',
    ...(numbered && { numbered: { total, page: 10 } }),
    read: async (cursor, signal) => {
      asked.push(cursor)
      await Promise.resolve()
      signal.throwIfAborted()
      if (failing) throw new Error('no answer')
      const from = Number(cursor ?? 0)
      const to = Math.min(from + 10, total)
      const rows = Array.from({ length: to - from }, (_, i) => from + i)
      // Like a search that has found nothing in its first rows.
      return { rows: from === 40 ? [] : rows, next: to < total ? String(to) : null }
    },
  })
  pages.start(() => {})
  return {
    pages,
    asked: async () => {
      await setImmediate()
      return asked.splice(0)
    },
    fail: (fails: boolean) => {
      failing = fails
    },
  }
}

test('a list is read as far as it is in sight and a little further, and to its end', async () => {
  const { pages, asked } = numbers(130)
  await asked()
  assert.deepEqual([pages.rows.length, pages.hasMore], [70, true])
  pages.show(0, 5)
  assert.deepEqual(await asked(), [])
  pages.show(30, 68)
  assert.deepEqual(await asked(), ['80', '90', '100', '110', '120'])
  assert.deepEqual([pages.rows.length, pages.hasMore], [120, false])
  assert.deepEqual([pages.rows[39], pages.rows[40], pages.rows[119]], [39, 50, 129])
})

test('what is in sight is read again, and what is behind it when it comes into sight', async () => {
  const { pages, asked } = numbers(400)
  await asked()
  pages.show(200, 215)
  await asked()
  pages.show(100, 115)
  pages.refresh()
  assert.deepEqual((await asked()).slice(0, 2), ['110', '120'])
  assert.equal(pages.rows.length, 180)
})

test('of a numbered list the pages in sight are read, and those that are passed are not', async ({
  mock,
}) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  const { pages, asked } = numbers(1_000, true)
  await asked()
  for (const from of [500, 700, 900]) pages.show(from, from + 5)
  mock.timers.tick(100)
  assert.equal((await asked())[0], '900')
  assert.deepEqual([pages.rows[0], pages.rows[500], pages.rows[905]], [0, undefined, 905])
  assert.deepEqual([pages.rows.length, pages.hasMore], [1_000, false])
  pages.refresh()
  assert.equal((await asked())[0], '900')
  assert.deepEqual([pages.rows[0], pages.rows[905]], [undefined, 905])
})

test('a page that cannot be read is asked for once, and again when it is needed', async () => {
  const { pages, asked, fail } = numbers(130)
  await asked()
  fail(true)
  pages.show(30, 68)
  assert.deepEqual(await asked(), ['80'])
  assert.equal(pages.failure?.message, 'no answer')
  fail(false)
  pages.readMissing()
  await asked()
  assert.deepEqual([pages.failure, pages.rows.length], [null, 120])
})

test('an empty list has no rows and no more', async () => {
  const { pages, asked } = numbers(0)
  await asked()
  assert.deepEqual([pages.rows.length, pages.hasMore], [0, false])
  pages.refresh()
  assert.deepEqual(await asked(), [null])
})
