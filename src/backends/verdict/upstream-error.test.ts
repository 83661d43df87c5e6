import assert from 'node:assert/strict'
import test from 'node:test'
import { withoutTags } from './upstream-error.ts'

const cases: [name: string, page: string, text: string][] = [
  ['tags go', '<p class="a">Bad<br/>Gateway</p>', ' Bad Gateway '],
  ['styles and scripts go with what is in them', '<STYLE>b{}</Style>x<script>if (a<b) c()</script>y', ' x y'],
  ['comments and declarations go', '<!doctype html><!-- a > b -->x<?xml?>', '  x '],
  ['a < that begins no tag stays', 'a < b, 1<2, <', 'a < b, 1<2, <'],
  ['what does not end is cut off', 'a<style>b', 'a '],
  [
    'letters that change their length in lower case do not shift it',
    '\u0130\u0130<b>x</b>',
    '\u0130\u0130 x ',
  ],
]
for (const [name, page, text] of cases) test(name, () => assert.equal(withoutTags(page), text))

test('a page made to last takes no longer than another', () => {
  for (const piece of ['<style>', '<script', '<', '<!--', '</style', '<style></', '<a <a ', '>']) {
    // Quadratic time would be minutes: the test would time out.
    withoutTags(piece.repeat(1_000_000 / piece.length))
  }
})
