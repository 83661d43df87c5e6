#!/bin/sh
# A judge of answers: one model answers each review, another one grades the answers. judged.csv has both.
#
#   sh examples/recipes/judge.sh
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
: "${MODEL:=sim-1}" "${JUDGE:=$MODEL}" "${CLI:=$(command -v offpeak || echo npx offpeak)}"
cat > grade.schema.json <<'JSON'
{
  "type": "object",
  "properties": { "grade": { "type": "integer", "minimum": 1, "maximum": 5 }, "reason": { "type": "string" } },
  "required": ["grade", "reason"],
  "additionalProperties": false
}
JSON
$CLI run "$here/reviews.csv" --model "$MODEL" -o answers.csv --prompt 'Answer this review politely: {{text}}'
$CLI run answers.csv --model "$JUDGE" --schema grade.schema.json --prefix judge_ -o judged.csv \
  --prompt 'Grade this answer to a review from 1 to 5. Review: {{text}} Answer: {{answer}}'
