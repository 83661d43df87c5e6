// Every list, with each of its filters and each pair of them, on SQLite.

import { join } from 'node:path'
import { test } from 'node:test'
import { sqliteStore } from '../../src/store/sqlite/store.ts'
import { checkLists } from '../support/check-lists.ts'
import { temporaryDisk } from '../support/temporary-disk.ts'

test('no list scans or sorts more than a page of a table, whatever it is filtered by', async () => {
  await using disk = await temporaryDisk()
  await checkLists(sqliteStore({ path: join(disk.root, 'offpeak.db') }))
})
