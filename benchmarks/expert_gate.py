"""How often Expert Gate's autoencoders choose the right task, and what each task costs to store, on digits.

python -m benchmarks.expert_gate
"""

import torch

from protodrift.data import load_digits
from protodrift.experiments.recipes import get_recipe
from protodrift.experiments.tree import Tree
from protodrift.networks import embed
from protodrift.readouts import reconstruction_errors


def main() -> None:
    recipe = get_recipe("digits")
    method = recipe.methods["Expert Gate"]
    stream = recipe.stream(load_digits())
    for seed in range(5):
        tree = Tree(stream, training=recipe.training, classifier_training=recipe.classifier_training, seed=seed)
        initial = tree.trained(method, 0).network
        chosen_right, stored = [], []
        for k in range(1, len(stream) + 1):
            result = tree.readout(method, k)
            z = [embed(initial, stream[t].test.images) for t in range(k)]
            truth = torch.cat([torch.full((len(part),), t) for t, part in enumerate(z)])
            chosen = reconstruction_errors(torch.cat(z), result.readout_state).argmin(dim=1)
            chosen_right.append(float((chosen == truth).double().mean()))
            stored.append(result.bytes_stored)
        per_task = stored[-1] - stored[-2]
        print(f"seed {seed}: gate accuracy after tasks 1-5:", " ".join(f"{a:.3f}" for a in chosen_right))
        print(f"        one more task stores {per_task:,} bytes (its network and its autoencoder)")


if __name__ == "__main__":
    main()
