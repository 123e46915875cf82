"""Fills datasets to a token budget: prompts, then responses, then training records. Each stage has its file in rules/."""

from snakemake.utils import min_version

min_version("9.20")


# Without this, datasets of the shipped config would be added to those of --configfile.
if not workflow.config_settings.configfiles:

    configfile: "config.yaml"


include: "rules/common.smk"
include: "rules/embedded.smk"
include: "rules/prompts.smk"
include: "rules/responses.smk"
include: "rules/records.smk"


rule all:
    default_target: True
    input:
        complete=expand("results/{dataset}/complete", dataset=SETTINGS.datasets),
        records=expand("results/{dataset}/records.jsonl", dataset=SETTINGS.datasets),
    localrule: True


onsuccess:
    print(*closing.after_success(SETTINGS.datasets), sep="\n", file=sys.stderr)


onerror:
    print(*closing.after_error(SETTINGS.datasets, STARTED), sep="\n", file=sys.stderr)
