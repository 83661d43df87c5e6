#!/bin/sh
# Classification with review: each review is classified twice, with two prompts; where the two differ, a person decides in
# review.csv. Run it again with --merge after that: final.csv has the decisions.
#
#   sh examples/recipes/classify-and-review.sh
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
: "${MODEL:=sim-1}" "${CLI:=npx offpeak}"
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
if (process.argv[2] === '--merge') {
  const decided = readFileSync('review.csv', 'utf8').trim().split('\n').slice(1)
  const byRow = new Map(decided.map((line) => line.match(/^"(\d+)","([^"]*)"/)?.slice(1) ?? []))
  save('final.csv', rows.map(({ sentiment, text }, i) => [i + 1, byRow.get(String(i + 1)) ?? sentiment, text]))
} else {
  const doubtful = rows.map((row, i) => [i + 1, row]).filter(([, row]) => row.sentiment !== row.again_sentiment)
  save('review.csv', doubtful.map(([row, { sentiment, text }]) => [row, sentiment, text]))
  console.log(`${doubtful.length} of ${rows.length} reviews are for a person: correct review.csv, then run this with --merge`)
}
JS
