#!/bin/sh
# lm-evaluation-harness at batch prices: a task of two questions, whose calls become single requests. Needs
# pip install 'lm_eval[api]'. scores/ has the result.
#
#   sh examples/recipes/gather-lm-eval.sh
set -eu
: "${MODEL:=sim-1}" "${CLI:=npx offpeak}"
export MODEL
cat > questions.jsonl <<'JSONL'
{"question": "What is 1 + 1?", "answer": "2"}
{"question": "What is 2 + 2?", "answer": "4"}
JSONL
cat > sums.yaml <<'YAML'
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\n"], max_gen_toks: 64}
metric_list: [{metric: exact_match}]
YAML
# lm_eval reads its address from --model_args alone.
$CLI gather -- sh -c 'lm_eval --model local-chat-completions --tasks sums --include_path . --apply_chat_template \
  --model_args "model=$MODEL,base_url=$OPENAI_BASE_URL/chat/completions,num_concurrent=200,timeout=86400" \
  --output_path scores'
