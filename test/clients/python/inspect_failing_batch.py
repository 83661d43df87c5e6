"""inspect-ai takes the body of a failed line for a chat completion: it loses the whole batch, with OpenAI itself as well."""
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import BatchConfig
from inspect_ai.scorer import includes
from inspect_ai.solver import solver


@solver
def generate_too_much():
    """The last sample asks for more than the context window has."""

    async def solve(state, generate):
        return await generate(state, **({"max_tokens": 1_000_000} if state.sample_id == 4 else {}))

    return solve


samples = [Sample(input=f"What is {i} + {i}?", target="") for i in range(4)]
[log] = eval(
    Task(dataset=samples, solver=generate_too_much(), scorer=includes()),
    model="openai/sim-1",
    model_args={"responses_api": False},
    log_dir=tempfile.mkdtemp(),
    display="none",
    fail_on_error=False,
    batch=BatchConfig(size=4, send_delay=1, tick=0.2),
)
assert not any(one.output.completion for one in log.samples), log.samples
