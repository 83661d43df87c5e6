"""inspect-ai: an evaluation whose samples go through a batch."""
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import BatchConfig
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

samples = [Sample(input=f"What is {i} + {i}?", target="") for i in range(4)]
task = Task(dataset=samples, solver=generate(), scorer=includes())
[log] = eval(
    task,
    model="openai/sim-1",
    model_args={"responses_api": False},
    log_dir=tempfile.mkdtemp(),
    display="none",
    batch=BatchConfig(size=4, send_delay=1, tick=0.2),
)
assert log.status == "success", log.error
assert len(log.samples) == 4 and all(one.output.completion for one in log.samples)
