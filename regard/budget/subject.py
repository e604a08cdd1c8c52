"""What a budget is of: a recipe, a run or a config.json by name, or a model from numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from regard.budget import kind_of, numbers, of
from regard.budget.closed_form.attention import Stack
from regard.budget.closed_form.layers import Lengths
from regard.budget.closed_form.models import whole
from regard.budget.closed_form.parts import Budget
from regard.budget.closed_form.symbols import Size
from regard.errors import InputError
from regard.recipe import Recipe, load

if TYPE_CHECKING:
    from regard.budget.rate import StepTime
    from regard.model import Model


@dataclass(frozen=True)
class NamedModel:
    """A recipe, a run or a config.json."""

    name: str
    changes: tuple[str, ...] = ()
    vocabulary: int | None = None
    labels: int | None = None
    terms: int | None = None

    @cached_property
    def kind(self) -> str:
        return kind_of(self.name)

    @property
    def all_changes(self) -> tuple[str, ...]:
        """The changes of --set, and those that --terms stands for."""
        if self.terms is None:
            return self.changes
        if self.kind != "recipe":
            raise InputError("--terms is for recipes and numbers", got=self.name)

        recipe = load(self.name, self.changes)
        kernels: list[str] = []
        for side in ("encoder", "decoder"):
            if getattr(recipe, side).kind == "transformer":
                kernels += [f"{side}.kernel=maclaurin", f"{side}.terms={self.terms}"]
        if not kernels:
            raise InputError(
                "--terms is for Transformers",
                where=self.name,
                got=f"encoder.kind = {recipe.encoder.kind}",
            )
        return (*self.changes, *kernels)

    @cached_property
    def recipe(self) -> Recipe:
        if self.kind != "recipe":
            raise InputError("needs a recipe", got=self.name)

        return load(self.name, self.all_changes)

    def as_recipe(self) -> NamedModel:
        """This model, if it is a recipe."""
        _ = self.recipe
        return self

    def budget(self, at: Lengths) -> Budget:
        is_recipe = self.kind == "recipe"
        return of(
            self.recipe if is_recipe else self.name,
            at,
            changes=() if is_recipe else self.all_changes,
            vocabulary=self.vocabulary,
            labels=self.labels,
            title=self.name,
        )

    def cost_by_length(self, kernel: Callable[[Stack], Stack]) -> Callable[[int], int]:
        """Multiplications of a forward pass of one row, as a function of the length."""
        recipe = self.recipe
        shortest = self.budget(Lengths.of(1, 1, 1))
        V = Size("V", shortest.size("V"))
        C = shortest.size("C")

        def cost(n: int) -> int:
            model = whole(recipe, V, Lengths.of(1, n, n), labels=C, kernel=kernel)
            return sum(part.forward.value for part in model.parts)

        return cost

    def count(self, at: Lengths) -> dict[str, int]:
        """Parameters and multiplications of the model itself, which is built and run."""
        from regard.budget.modules import of_model

        recipe, model = self._built("--count")
        counts = of_model(
            model,
            batch=at.B.value,
            source=at.S.value,
            target=_target(recipe, at),
            ctc_weight=recipe.train.ctc_weight,
        )
        return {"parameters": model.parameter_count} | counts

    def time_of_step(self, at: Lengths) -> StepTime:
        """The time of a training step on this machine, measured."""
        from regard.budget.rate import time_of_step

        recipe, model = self._built("--machines without --flops")
        return time_of_step(
            model,
            at,
            target=_target(recipe, at),
            ctc_weight=recipe.train.ctc_weight,
            averages=recipe.train.ema_decay > 0,
        )

    def _built(self, option: str) -> tuple[Recipe, Model]:
        """The recipe, and the model with weights."""
        from regard import bundle
        from regard.budget.modules import built

        if self.kind == "recipe":
            return self.recipe, built(self.recipe, self.vocabulary, self.labels)
        if self.kind == "run":
            run = bundle.load(self.name, device="cpu")
            return run.recipe, run.model
        hint = "add --flops, as in --flops 50G" if option.endswith("--flops") else None
        raise InputError(f"{option} needs a recipe or a run", got=self.name, hint=hint)

    @property
    def attends(self) -> bool:
        return "transformer" in (self.recipe.encoder.kind, self.recipe.decoder.kind)


def _target(recipe: Recipe, at: Lengths) -> int:
    return 1 if recipe.decoder.kind == "classifier" else at.T.value


class NumbersModel:
    """A model from numbers alone."""

    def __init__(self, option: str, text: str, terms: int | None = None):
        self.option = option
        self.terms = terms
        if terms is not None and not self.attends:
            raise InputError("--terms is for attention", got=option)

        classes = {
            "--transformer": numbers.Transformer,
            "--attention": numbers.Attention,
            "--lstm": numbers.Recurrent,
            "--gru": numbers.Recurrent,
        }
        if terms is not None:
            text += f",kernel=maclaurin,terms={terms}"
        self.sizes: Any = numbers.read(classes[option], text, option)

    @property
    def attends(self) -> bool:
        return self.option in ("--transformer", "--attention")

    @property
    def name(self) -> str:
        return self.option

    def as_recipe(self) -> NamedModel:
        raise InputError("needs a recipe", got=self.option)

    def count(self, at: Lengths) -> dict[str, int]:
        raise InputError("--count needs a recipe or a run", got=self.option)

    def time_of_step(self, at: Lengths) -> StepTime:
        raise InputError(
            "a model from numbers cannot be run to measure its speed",
            got=self.option,
            hint="--flops says how many FLOPs a machine makes in a second, as in 50G",
        )

    def budget(self, at: Lengths) -> Budget:
        if self.option == "--attention":
            return numbers.attention(self.sizes, at)
        if self.option != "--transformer":
            return numbers.recurrent(self.sizes, self.option.removeprefix("--"), at)

        budget = numbers.transformer(self.sizes, at)
        if self.sizes.tied != "none" or not self.sizes.output_bias:
            parameters = numbers.untied(self.sizes, at)
            note = f"nothing tied and with an output bias: {parameters:,} parameters"
            budget = replace(budget, notes=(*budget.notes, note))
        return budget

    def cost_by_length(self, kernel: Callable[[Stack], Stack]) -> Callable[[int], int]:
        """Multiplications of a forward pass of one row, as a function of the length."""
        if not self.attends:
            return lambda n: self.budget(Lengths.of(1, n, n)).multiplications["forward"]

        stack = kernel(Stack(layers=1, width=1, heads=1, ffn_width=1))
        sizes = self.sizes.model_copy(update={"kernel": stack.kernel, "terms": stack.terms})
        make = numbers.transformer if self.option == "--transformer" else numbers.attention

        def cost(n: int) -> int:
            return make(sizes, Lengths.of(1, n, n), form=stack.form).multiplications["forward"]

        return cost


Subject = NamedModel | NumbersModel
