#!/bin/sh
# inspect-ai at batch prices: an evaluation whose samples become single requests. Needs pip install inspect-ai openai.
# logs/ has the log, which `inspect view` shows.
#
#   sh examples/recipes/gather-inspect.sh
set -eu
: "${MODEL:=sim-1}" "${CLI:=npx offpeak}"
cat > sums.py <<'PY'
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def sums():
    samples = [Sample(input=f"What is {i} + {i}?", target=str(2 * i)) for i in range(4)]
    return Task(dataset=samples, solver=generate(), scorer=includes())
PY
$CLI gather -- inspect eval sums.py --model "openai/$MODEL" -M responses_api=false --max-connections 200 --display plain
