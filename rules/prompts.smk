"""Sources to tokenized prompts, in the order in which they are asked. Servers and answers are not in here."""


rule tokenize_prompts:
    input:
        settings="results/{dataset}/settings/prompts.json",
        sources=source_files,
        tokenizer=tokenizer_files,
        earlier=earlier_prompts,
    output:
        prompts="results/{dataset}/prompts.parquet",
    log:
        "logs/tokenize_prompts/{dataset}.log",
    priority: priority
    conda:
        "../envs/tokenfill.yaml"
    # The tokenizer spreads over the cores by itself.
    threads: 2
    message:
        "{wildcards.dataset}: tokenizing prompts"
    script:
        "../scripts/tokenize_prompts.py"
