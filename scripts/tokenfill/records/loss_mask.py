"""Which ids of a record are trained on: those that the model generated, and no others. Pure."""


def joined(prompt_ids: list[int], output_ids: list[int]) -> tuple[list[int], list[int]]:
    """(input_ids, loss_mask), both of the length of prompt and output together.

    The mask is 0 over the prompt and 1 over every generated id, the stop token included. It is not shifted:
    mask[i] tells of input_ids[i], and a trainer that predicts the next token shifts both.
    ValueError: nothing was generated, so that nothing could be trained on.
    """
    if not output_ids:
        raise ValueError("an answer without ids has nothing to train on")
    return prompt_ids + output_ids, [0] * len(prompt_ids) + [1] * len(output_ids)
