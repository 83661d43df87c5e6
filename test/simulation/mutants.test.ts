import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { MUTANTS } from './mutants.ts'

const root = new URL('../../', import.meta.url)

for (const { bug, file, find, test: named } of MUTANTS) {
  test(`the source has one place for the mutant: ${bug}`, () => {
    assert.equal(readFileSync(new URL(file, root), 'utf8').split(find).length, 2, file)
    if (named !== undefined) assert.ok(existsSync(new URL(named, root)), named)
  })
}
