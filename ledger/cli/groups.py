"""Groups that Typer does not have: a default command."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


def default_group(default: str) -> type[TyperGroup]:
    """A group class in which `default` runs when the first word is not one of the group's commands.

    `posttrain gate CANDIDATE …` and `posttrain gate policy …` live in one group that way:
    `typer.Typer(cls=default_group("decide"))`.
    """

    class DefaultGroup(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            asks_for_help = self.no_args_is_help if not args else args[0] in ctx.help_option_names
            if not asks_for_help and (not args or args[0] not in self.commands):
                args = [default, *args]
            return super().parse_args(ctx, args)

    return DefaultGroup
