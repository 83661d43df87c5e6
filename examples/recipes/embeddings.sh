#!/bin/sh
# Embeddings: a vector for each review, and the two reviews that are nearest to each other. With -o vectors.parquet, vectors
# are lists of floats.
#
#   sh examples/recipes/embeddings.sh
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
: "${MODEL:=sim-1}" "${CLI:=$(command -v offpeak || echo npx offpeak)}"
$CLI run "$here/reviews.csv" --model "$MODEL" --input '{{text}}' -o vectors.jsonl
node <<'JS'
const rows = require('node:fs').readFileSync('vectors.jsonl', 'utf8').trim().split('\n').map((line) => JSON.parse(line))
const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0)
const near = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b))
const pairs = rows.flatMap((a, i) => rows.slice(i + 1).map((b) => [near(a.embedding, b.embedding), a.text, b.text]))
const [similarity, one, other] = pairs.sort(([a], [b]) => b - a)[0]
console.log(`nearest (${similarity.toFixed(3)}):\n  ${one}\n  ${other}`)
JS
