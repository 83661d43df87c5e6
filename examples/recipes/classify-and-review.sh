#!/bin/sh
# Classification with review: each review is classified twice, with two prompts; where the two differ, a person decides in
# review.csv. Run it again with --merge after that: final.csv has the decisions.
#
#   sh examples/recipes/classify-and-review.sh
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
: "${MODEL:=sim-1}" "${CLI:=$(command -v offpeak || echo npx offpeak)}"
if [ "${1-}" != --merge ]; then
  $CLI run "$here/reviews.csv" --model "$MODEL" --schema "$here/review-schema.json" -o first.jsonl \
    --prompt 'Classify this review: {{text}}'
  $CLI run first.jsonl --model "$MODEL" --schema "$here/review-schema.json" --prefix again_ -o both.jsonl \
    --prompt 'What does the author of this review feel, and want? {{text}}'
fi
node - "${1-}" <<'JS'
const { readFileSync, writeFileSync } = require('node:fs')
const rows = readFileSync('both.jsonl', 'utf8').trim().split('\n').map((line) => JSON.parse(line))
const text = (value) => `"${String(value ?? '').replaceAll('"', '""')}"`
const save = (path, all) =>
  writeFileSync(path, `${['row,sentiment,text', ...all.map((cells) => cells.map(text).join(','))].join('\n')}\n`)
const doubtful = rows.map((row, i) => [i + 1, row]).filter(([, row]) => row.sentiment !== row.again_sentiment)
if (process.argv[2] === '--merge') {
  // A spreadsheet may have saved it without quotes, or with semicolons.
  const decided = readFileSync('review.csv', 'utf8').matchAll(/^"?(\d+)"?[,;]"?(positive|neutral|negative)\b/gm)
  const byRow = new Map(Array.from(decided, ([, row, sentiment]) => [Number(row), sentiment]))
  const missing = doubtful.filter(([row]) => !byRow.has(row)).map(([row]) => row)
  if (missing.length > 0) throw new Error(`review.csv has no sentiment that is one of the three for row ${missing.join(', ')}`)
  save('final.csv', rows.map(({ sentiment, text }, i) => [i + 1, byRow.get(i + 1) ?? sentiment, text]))
} else {
  save('review.csv', doubtful.map(([row, { sentiment, text }]) => [row, sentiment, text]))
  console.log(`${doubtful.length} of ${rows.length} reviews are for a person: correct review.csv, then run this with --merge`)
}
JS
