"""`protodrift backbones`: the networks that there are, and where their weights come from."""

from __future__ import annotations

import argparse
import json

from .arguments import Commands, add_command


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "backbones",
        list_backbones,
        help="list the networks, and where their pretrained weights come from",
        description="Lists every backbone: what it takes, its features and weights, and the source and license of "
        "published ImageNet weights, which weights='imagenet' brings.",
        epilog="example:  protodrift run NAME --set network.backbone=efficientnet-lite0 --set network.weights=imagenet",
    )
    parser.add_argument("--json", action="store_true", help="for programs")


def list_backbones(args: argparse.Namespace) -> int:
    """Print the backbones."""
    from ..networks.build import BACKBONES, described

    facts = {name: described(name) for name in BACKBONES if name != "auto"}
    if args.json:
        print(json.dumps(facts, indent=1))
        return 0
    width = max(map(len, facts))
    for name, fact in facts.items():
        size = f"{fact['features']:5} features  {fact['parameters'] / 1e6:6.2f} M weights"
        print(f"{name:{width}}  {fact['input']:7}  {size}")
        if fact["weights"]:
            at = f", at {fact['resolution']} x {fact['resolution']}" if fact["resolution"] else ""
            print(f"{'':{width}}  ImageNet{at}: {fact['weights']}")
            print(f"{'':{width}}  {fact['license']}")
    return 0
