"""Prompts to responses. The journal beside `complete` is the worker's own: Snakemake would delete it before each rerun."""


rule generate_responses:
    input:
        prompts="results/{dataset}/prompts.parquet",
        settings="results/{dataset}/settings/responses.json",
        # Written by common.smk where the journal contradicts `complete`, so that the dataset is pending again.
        journal="results/{dataset}/settings/journal.json",
    output:
        complete="results/{dataset}/complete",
    log:
        "logs/generate_responses/{dataset}.log",
    priority: priority
    conda:
        "../envs/tokenfill.yaml"
    # It waits for servers: no core is held, so that datasets overlap under --cores 1, as far as `filling` lets them.
    threads: 0
    resources:
        filling=share_of_filling,
    params:
        rank=rank,
        alone=is_alone,
    message:
        "{STANDINGS:{wildcards.dataset}}"
    script:
        "../scripts/generate_responses.py"
