"""The config, checked and laid down in results/ for the jobs, and what the rules look up in it. No rule is in here."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir, "scripts")))

from tokenfill import preflight, settings_files
from tokenfill.config_check import refuse_doubled_keys
from tokenfill.errors import UserError
from tokenfill.report import closing
from tokenfill.report.status import Standings
from tokenfill.settings import load, read_schema

# The model that a rule of this workflow fetches; every other is a folder or a hub id of the user's.
EMBEDDED_MODEL = "resources/SmolLM2-135M-Instruct"
# What profiles/default lends to all filling jobs together; each takes its share.
FILLING = 60
STARTED = time.time()
STANDINGS = Standings()
CONFIGFILES = workflow.config_settings.configfiles or ["config.yaml"]
WHERE = ", ".join(map(str, CONFIGFILES))

try:
    refuse_doubled_keys(*CONFIGFILES)
    schema = read_schema(Path(workflow.basedir, "schemas/config.schema.yaml"))
    SETTINGS = load(config, schema, WHERE)
    if workflow.is_main_process:
        preflight.check(SETTINGS, WHERE, made_by_rules=(EMBEDDED_MODEL,))
        settings_files.write_all(SETTINGS)
except UserError as error:
    sys.exit(str(error))


wildcard_constraints:
    dataset="|".join(SETTINGS.datasets),


def source_files(wildcards):
    """The local files that the prompts are read from, and those whose prompts are left out."""
    return preflight.source_files(SETTINGS.datasets[wildcards.dataset])


def tokenizer_files(wildcards):
    """What of a local model's folder shapes the prompts; for the embedded model what its rule makes."""
    dataset = SETTINGS.datasets[wildcards.dataset]
    if dataset.prompts["model"] == EMBEDDED_MODEL:
        return [*rules.fetch_embedded_model.output, *preflight.template_files(dataset)]
    return preflight.model_files(dataset)


def earlier_prompts(wildcards):
    """With dedupe: across, the prompts that this dataset must not repeat."""
    earlier = settings_files.earlier_datasets(SETTINGS, wildcards.dataset)
    return expand("results/{dataset}/prompts.parquet", dataset=earlier)


def rank(wildcards):
    """0 for the dataset named first, which is filled first."""
    return list(SETTINGS.datasets).index(wildcards.dataset)


def priority(wildcards):
    """Snakemake's measure of the same: the larger goes first."""
    return len(SETTINGS.datasets) - rank(wildcards)


def share_of_filling(wildcards):
    """A launched server has the machine to itself; running servers are shared by datasets_at_once."""
    engine = SETTINGS.datasets[wildcards.dataset].engine
    return FILLING if engine["launch"] else -(-FILLING // engine["datasets_at_once"])


def is_alone(wildcards):
    """Whether no other dataset shows its progress at the same time."""
    return len(SETTINGS.datasets) == 1 or share_of_filling(wildcards) == FILLING
