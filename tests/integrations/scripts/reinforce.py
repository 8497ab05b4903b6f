"""REINFORCE on gymnasium's CartPole, on one atom: episodes are seeded by their number, so a resume goes on exactly."""

import gymnasium
import torch
from torch import nn

from gpusched import trial

world = gymnasium.make("CartPole-v1")
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)


def episode(number):
    """Play an episode; return what its actions cost (for the gradient) and its length."""
    seen, _ = world.reset(seed=number)
    chosen, length, over = [], 0, False
    while not over:
        actions = torch.distributions.Categorical(logits=policy(torch.as_tensor(seen)))
        action = actions.sample()
        chosen.append(actions.log_prob(action))
        seen, _, ended, cut, _ = world.step(action.item())
        length, over = length + 1, ended or cut
    left = torch.arange(length, 0, -1.0)
    return -(torch.stack(chosen) * (left - left.mean())).sum(), length


for update in trial.steps(50, policy=policy, optimizer=optimizer):  # <-
    losses, lengths = zip(*(episode(4 * update + one) for one in range(4)), strict=True)
    optimizer.zero_grad()
    torch.stack(losses).mean().backward()
    optimizer.step()
    mean = sum(lengths) / len(lengths)
    trial.state["running"] = running = 0.9 * trial.state.get("running", mean) + 0.1 * mean  # <-
    trial.report(loss=-running)  # <-
