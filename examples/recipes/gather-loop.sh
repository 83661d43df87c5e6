#!/bin/sh
# A loop of the OpenAI SDK at batch prices: a program that knows nothing of batches. Needs pip install openai. answers.txt has
# an answer in each line.
#
#   sh examples/recipes/gather-loop.sh
set -eu
: "${MODEL:=sim-1}" "${CLI:=npx offpeak}"
export MODEL
cat > loop.py <<'PY'
import os
from concurrent.futures import ThreadPoolExecutor

import openai

client = openai.OpenAI(timeout=86400)


def ask(word):
    message = {"role": "user", "content": f"Explain {word} in one sentence."}
    answer = client.chat.completions.create(model=os.environ["MODEL"], messages=[message])
    return answer.choices[0].message.content.replace("\n", " ")


with ThreadPoolExecutor(200) as pool, open("answers.txt", "w") as file:
    for answer in pool.map(ask, ["batch", "line", "chunk", "lease"]):
        print(answer, file=file)
PY
$CLI gather -- python3 loop.py
