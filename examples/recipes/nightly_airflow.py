"""Nightly Airflow: a DAG that runs the file of each day after work, and fails when lines failed.

Put it into Airflow's folder of DAGs, with OFFPEAK_BASE_URL and OFFPEAK_API_KEY in the environment of its workers. A task that
is retried goes on with the batch that it began, since its output has the same name.
"""

from datetime import datetime, timedelta

from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator

with DAG(
    "offpeak_nightly",
    schedule="0 18 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
):
    BashOperator(
        task_id="run",
        cwd="/data/requests",
        bash_command="offpeak run {{ ds }}.jsonl -o /data/answers/{{ ds }}.jsonl --name nightly-{{ ds }}",
    )
