"""Proximal policy optimisation (``ppo.py``) on CartPole, in plain torch: 16 carts at once, on one CPU core.

    gpusched run cartpole.yaml                      # HyperSched
    (cartpole.yaml has the command for HyperDrive's POP)
    python cartpole.py --lr 3e-3 --max-steps 40     # one configuration, alone

A step is a report: 128 moves of every cart, then the update. The metric is the mean length of the last 100 episodes
(500 at most), so a target of 200 is one that was held for 100 episodes, as in HyperDrive (Middleware'17), section 6.3.

The physics are those of gymnasium's CartPole-v1 (a test compares them step by step). Carts, their generator and the
last episodes are in the checkpoint, so that a paused trial goes on in the middle of its episodes.
"""

import math

import ppo
import torch
from torch import nn

import gpusched

DEFAULTS = ppo.DEFAULTS
CARTS, LONGEST = 16, 500


class CartPole(nn.Module):
    """Carts that start anew when their pole has fallen, they have left the track, or 500 moves are over.

    ``recent`` has the lengths of the last 100 episodes; those that are still to come count as nothing.
    """

    METRIC, SEEN, ACTIONS = "length", 4, 2

    def __init__(self, carts, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.register_buffer("state", self.fresh(carts))
        self.register_buffer("length", torch.zeros(carts))
        self.register_buffer("recent", torch.zeros(ppo.RECENT))
        self.register_buffer("episodes", torch.tensor(0))

    def get_extra_state(self):
        return self.generator.get_state()

    def set_extra_state(self, state):
        self.generator.set_state(state)

    def fresh(self, carts):
        return torch.rand(carts, 4, dtype=torch.float64, generator=self.generator) * 0.1 - 0.05

    def seen(self):
        return self.state.float()

    def step(self, actions):
        """Push every cart to the left (0) or right (1); tell which have fallen, and which have run out of time."""
        self.state = moved(self.state, actions)
        self.length += 1
        position, angle = self.state[:, 0].abs(), self.state[:, 2].abs()
        fallen = (position > 2.4) | (angle > 12 * 2 * math.pi / 360)
        late = (self.length >= LONGEST) & ~fallen
        reached = self.state.clone()
        for cart in (fallen | late).nonzero().flatten().tolist():
            self.recent[self.episodes % ppo.RECENT] = self.length[cart]
            self.episodes += 1
            self.length[cart] = 0
            self.state[cart] = self.fresh(1)
        return torch.ones(len(actions)), fallen, late, reached.float()


def moved(state, actions):
    """Return carts one fiftieth of a second later: the equations and the Euler step of CartPole-v1."""
    gravity, masses, pole, half, tau = 9.8, 1.1, 0.1, 0.5, 0.02
    position, speed, angle, turn = state.unbind(1)
    force = torch.where(actions == 1, 10.0, -10.0).to(state.dtype)
    sine, cosine = angle.sin(), angle.cos()
    pushed = (force + pole * half * turn.square() * sine) / masses
    bent = (gravity * sine - cosine * pushed) / (half * (4 / 3 - pole * cosine.square() / masses))
    gained = pushed - pole * half * bent * cosine / masses
    return torch.stack(
        [position + tau * speed, speed + tau * gained, angle + tau * turn, turn + tau * bent], 1
    )


def main():
    trial = gpusched.init(DEFAULTS)
    ppo.train(trial, CartPole(CARTS, trial.seed))


if __name__ == "__main__":
    main()
