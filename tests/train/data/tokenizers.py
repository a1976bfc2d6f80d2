# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Makes a tokenizer.json."""

from typing import Any

from tests.train.jobs import prose


def bpe(*, specials: tuple[str, ...] = ("<s>", "</s>"), begins: bool = False) -> bytes:
    """A byte-level BPE of about 300 tokens; with `begins`, it puts <s> before a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator([prose(400, n).decode() for n in range(4)], trainer)
    if begins:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
        )
    data: str = made.to_str()
    return data.encode()
