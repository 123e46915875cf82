"""Responses to training records: prompt ids and generated ids with the loss mask between them."""


rule build_records:
    input:
        prompts="results/{dataset}/prompts.parquet",
        complete="results/{dataset}/complete",
        settings="results/{dataset}/settings/records.json",
    output:
        records="results/{dataset}/records.jsonl",
    log:
        "logs/build_records/{dataset}.log",
    priority: priority
    conda:
        "../envs/tokenfill.yaml"
    message:
        "{wildcards.dataset}: building training records"
    script:
        "../scripts/build_records.py"
