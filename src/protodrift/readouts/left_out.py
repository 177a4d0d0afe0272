"""Leave-one-out of discriminants in closed form: no image is embedded, and no covariance factorized, a second time."""

from __future__ import annotations

import torch


def left_out_discriminants(
    z: torch.Tensor,
    targets: torch.Tensor,
    means: torch.Tensor,
    counts: torch.Tensor,
    factor: torch.Tensor,
    share: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return discriminant scores and distances of N images, each as if it had been left out of mean and covariance.

    With r = z - mu_y, image z of class y leaves the covariance A as A - a r r', a = share n / (n - 1), and its class
    the mean mu_y + t r, t = -1 / (n - 1). Both are of rank one, so that with P = A^-1, v = P r and q = r.v

        P' = P + f v v',   f = a / (1 - a q),   P' r = g v,   g = 1 + f q

    and all products follow from those with P, in O(N D^2) for all images together. Distances are those in the plane of
    the class means: the residual outside of it is the distance from z to the affine hull of the means,

        z P' z - b B'^-1 b + (1 - 1 B'^-1 b)^2 / (1 B'^-1 1),   b = M' P' z,   B' = M' P' M'

    where the (K, K) matrix B' of the products of the means differs from B by one of rank two.
    The trace that A is shrunk toward, and the number of all images, stay as they are: that is of order 1 / N.

    Args:
        z: (N, D) images, which means and covariance were computed from.
        targets: (N,) their classes, of two images or more.
        means: (K, D) mu_k.
        counts: (K,) n, the images behind each mean.
        factor: (D, D) L, lower triangular, of A = L L'.
        share: by which the scatter of one image counts in A: (1 - shrinkage) / number of all images.

    Returns:
        (N, K) scores mu_k' P' z - 1/2 mu_k' P' mu_k, and (N, K) distances between z and mu_k in the plane of the means.
    """
    z, means = z.double(), means.double()
    rows, n = torch.arange(len(z)), counts[targets].double()

    def solved_for(vectors: torch.Tensor) -> torch.Tensor:  # x' P, in the type of the factor
        return torch.cholesky_solve(vectors.T.to(factor.dtype), factor).T.double()

    solved = solved_for(means).T  # P mu_k, (D, K)
    r = z - means[targets]
    v = solved_for(r)
    q, rz, p = (r * v).sum(dim=1), (v * z).sum(dim=1), v @ means.T  # r'Pr, r'Pz, mu_k'Pr
    a, t = share * n / (n - 1), -1 / (n - 1)
    f = a / (1 - a * q)
    g = 1 + f * q
    products = means @ solved  # B
    b = z @ solved + (f * rz)[:, None] * p
    b[rows, targets] += t * g * rz
    lengths = products.diagonal() + f[:, None] * p.square()
    lengths[rows, targets] += 2 * t * g * p[rows, targets] + t.square() * q * g
    scores = b - lengths / 2
    zz = (z * solved_for(z)).sum(dim=1) + f * rz.square()
    squared = zz[:, None] - 2 * scores
    if len(means) <= z.shape[1]:  # with more means the plane is the whole space
        update = torch.stack([f, t * g, t * g, t.square() * q * g], dim=1).view(-1, 2, 2)
        squared = squared - _residual(products, p, targets, update, b, zz)[:, None]
    return scores, squared.clamp(min=0).sqrt()


def _residual(
    products: torch.Tensor,
    p: torch.Tensor,
    targets: torch.Tensor,
    update: torch.Tensor,
    b: torch.Tensor,
    zz: torch.Tensor,
) -> torch.Tensor:
    """Return (N,) squared distances to the hull of the means: B' = B + [p e_y] C [p e_y]', C the (N, 2, 2) update."""
    rows = torch.arange(len(p))
    tiny = 1e-10 * products.diagonal().mean()  # means that depend on each other
    inverse = torch.linalg.inv(products + tiny * torch.eye(len(products), dtype=products.dtype))
    sides = torch.stack([p @ inverse, inverse[targets]], dim=1)  # B^-1 [p e_y], (N, 2, K)
    cross = sides[rows, :, targets]
    inner = torch.stack([torch.stack([(p * sides[:, 0]).sum(dim=1), cross[:, 0]], dim=1), cross], dim=1)
    middle = torch.linalg.inv(torch.linalg.inv(update) + inner)  # Woodbury's

    def solve(values: torch.Tensor) -> torch.Tensor:
        through = middle @ (sides @ values[:, :, None])  # (N, 2, 1)
        solved: torch.Tensor = values @ inverse - (sides * through).sum(dim=1)
        return solved

    of_b, of_one = solve(b), solve(torch.ones_like(b))
    return zz - (b * of_b).sum(dim=1) + (1 - of_b.sum(dim=1)).square() / of_one.sum(dim=1)
