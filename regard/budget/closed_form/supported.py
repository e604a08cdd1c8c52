"""The fields and values of a recipe that the closed forms cover; all others are refused.

A field that is not listed here must have its default value, or cost nothing by its mark
(`recipe.Mark.FREE`). So a new field that leaves existing models as they are needs no entry; one
that costs something needs an entry here and a closed form in models.py or layers.py.
"""

from __future__ import annotations

from regard import recipe as r
from regard.errors import InputError

_RECURRENT = "width cell layers dropout"
_TRANSFORMER = (
    "width layers heads head_width ffn_width norm positions kernel terms activation dropout "
    "key_bias"
)
_PICTURE = "size channels_in"
TASKS = "chat translate classify caption speech blank"
FIELDS = {
    "source": {
        "tokens": "dropout",
        "convolutions": f"{_PICTURE} channels padding kernel_size downsample",
        "patches": f"{_PICTURE} patch dropout",
        "sound": "rate mels window hop levels frames strides channels "
        "dropout speed_perturbation tempo_perturbation",
        "residual": f"{_PICTURE} channels blocks stem padding_mode dropout",
    },
    "encoder": {
        "recurrent": f"{_RECURRENT} directions merge residual",
        "blank": f"{_RECURRENT} directions embedding_width",
        "transformer": _TRANSFORMER,
        "convolution": "width layers kernel_size positions activation dropout",
        "identity": "summary",
    },
    "decoder": {
        "recurrent": f"{_RECURRENT} attention attention_order input_feeding tied shared",
        "transformer": f"{_TRANSFORMER} tied shared",
        "recurrent-cross-attention": f"{_RECURRENT} heads ffn_width key_bias tied shared",
        "classifier": "pooling hidden dropout hidden_dropout tied",
    },
}
VALUES = {
    "activation": "relu gelu tanh",
    "padding_mode": "zeros edge",
    "attention": "none dot scaled general additive",
    "cell": "lstm gru",
    "downsample": "pool stride",
    "kernel": "softmax maclaurin",
    "levels": "relative bands absolute",
    "attention_order": "after_cell before_cell",
    "merge": "concatenate sum",
    "norm": "pre post",
    "positions": "none sinusoidal learned rotary alibi relative",
    "pooling": "summary attention",
    "summary": "all mean",
}


class NoClosedForm(InputError):
    """The model has no closed form; it can only be counted by running it."""


def unknown(recipe: r.Recipe) -> str | None:
    """The first field of a recipe that no closed form covers, None if all are covered.

    >>> unknown(r.load("chat-attention"))
    """
    if recipe.task not in TASKS.split():
        return f'task = "{recipe.task}"'
    for name, kinds in FIELDS.items():
        section = getattr(recipe, name)
        if section.kind not in kinds:
            return f'{name}.kind = "{section.kind}"'
        fields = ("kind", *kinds[section.kind].split())
        for field, value in section:
            if r.Mark.FREE in r.marks_of(f"{name}.{field}"):
                covered = True
            elif field in fields:
                covered = field not in VALUES or value in VALUES[field].split()
            else:
                default = (
                    type(section)
                    .model_fields[field]
                    .get_default(call_default_factory=True, validated_data=section.__dict__)
                )
                covered = value == default
            if not covered:
                return f"{name}.{field} = {r.shown(value)}"
    return None


def check(recipe: r.Recipe, title: str) -> None:
    """Raise NoClosedForm unless the closed forms cover all of a recipe."""
    if (part := unknown(recipe)) is not None:
        raise NoClosedForm(
            f"no closed form yet for {part}",
            where=title,
            hint="with --count it is counted by running it",
        )
