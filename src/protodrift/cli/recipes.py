"""`protodrift recipes`, `protodrift show`, `protodrift methods`: what there is."""

from __future__ import annotations

import argparse
import json
import textwrap

from .arguments import Commands, add_command, add_imports


def register(commands: Commands) -> None:
    """Add the commands."""
    from .run import add_budget, add_settings

    recipes = commands.add_parser("recipes", help="list the recipes", description="Lists the recipes, one line each.")
    recipes.set_defaults(run=list_recipes)
    show = add_command(
        commands,
        "show",
        show_recipe,
        help="print a recipe, fully resolved",
        description="Prints a recipe with every value it will use, as JSON or TOML; `protodrift run FILE` runs it.",
        epilog="examples:\n  protodrift show digits --set sigma=0.2\n  protodrift show digits --toml > mine.toml",
    )
    show.add_argument("recipe", metavar="NAME", help="a name from `protodrift recipes`")
    add_budget(show)
    add_settings(show)
    show.add_argument("--toml", action="store_true", help="as TOML")
    add_imports(show)
    methods = commands.add_parser(
        "methods",
        help="list the methods: five axes, what each stores, its paper",
        description="Lists every named method with its choice on the five axes, what it stores, and its paper.",
    )
    methods.add_argument("--json", action="store_true", help="for programs")
    methods.set_defaults(run=list_methods)


def list_recipes(args: argparse.Namespace) -> int:
    """Print one line per recipe."""
    from ..common.tables import text_table
    from ..experiments.recipes import RECIPES

    print(text_table([name, make().about] for name, make in RECIPES.items()))
    return 0


def show_recipe(args: argparse.Namespace) -> int:
    """Print the resolved recipe."""
    from ..experiment import recipe_of
    from ..experiments.settings import toml_text, with_settings
    from .run import settings_of

    document = with_settings(recipe_of(args.recipe, args.budget), settings_of(args)).resolved()
    print(toml_text(document) if args.toml else json.dumps(document, indent=1))
    return 0


def list_methods(args: argparse.Namespace) -> int:
    """Print the methods."""
    from ..methods import METHODS, described

    facts = {name: described(name) for name in METHODS}
    if args.json:
        print(json.dumps(facts, indent=1))
        return 0
    for name, fact in facts.items():
        print(name)
        for axis in ("objective", "penalty", "exemplars", "drift", "readout", "schedule", "stores", "paper"):
            text = textwrap.fill(fact[axis], 100, subsequent_indent=" " * 14)
            print(f"  {axis:10}  {text}")
    return 0
