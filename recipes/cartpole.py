"""Proximal policy optimisation on CartPole, in plain torch: 16 carts at once, on one CPU core.

    gpusched run cartpole.yaml                      # HyperSched
    (cartpole.yaml has the command for HyperDrive's POP)
    python cartpole.py --lr 3e-3 --max-steps 40     # one configuration, alone

A step is a report: 128 moves of every cart, then the update. The metric is the mean length of the last 100 episodes
(500 at most), so a target of 200 is one that was held for 100 episodes, as in HyperDrive (Middleware'17), section 6.3.

The physics are those of gymnasium's CartPole-v1 (a test compares them step by step). Carts, their generator and the
last episodes are in the checkpoint, so that a paused trial goes on in the middle of its episodes.
"""

import math

import torch
from torch import nn

import gpusched

DEFAULTS = {"lr": 3e-3, "gamma": 0.99, "lam": 0.95, "clip": 0.2, "entropy": 0.01, "width": 64}
CARTS, MOVES, EPOCHS, PARTS = 16, 128, 4, 4
LONGEST, RECENT = 500, 100


class CartPole(nn.Module):
    """Carts that start anew when their pole has fallen, they have left the track, or 500 moves are over."""

    def __init__(self, carts, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.register_buffer("state", self.fresh(carts))
        self.register_buffer("length", torch.zeros(carts))
        self.register_buffer("recent", torch.zeros(RECENT))
        self.register_buffer("episodes", torch.tensor(0))

    def get_extra_state(self):
        return self.generator.get_state()

    def set_extra_state(self, state):
        self.generator.set_state(state)

    def fresh(self, carts):
        return torch.rand(carts, 4, dtype=torch.float64, generator=self.generator) * 0.1 - 0.05

    def step(self, actions):
        """Push every cart to the left (0) or right (1); tell which have fallen, and which have run out of time."""
        self.state = moved(self.state, actions)
        self.length += 1
        position, angle = self.state[:, 0].abs(), self.state[:, 2].abs()
        fallen = (position > 2.4) | (angle > 12 * 2 * math.pi / 360)
        late = (self.length >= LONGEST) & ~fallen
        reached = self.state.clone()
        for cart in (fallen | late).nonzero().flatten().tolist():
            self.recent[self.episodes % RECENT] = self.length[cart]
            self.episodes += 1
            self.length[cart] = 0
            self.state[cart] = self.fresh(1)
        return fallen, late, reached

    def mean_length(self):
        """The mean length of the last 100 episodes; those that are still to come count as nothing."""
        return self.recent.mean()


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


class Agent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(
                *(nn.Linear(4, width), nn.Tanh()),
                *(nn.Linear(width, width), nn.Tanh()),
                nn.Linear(width, outputs),
            )
            for outputs in (2, 1)
        )

    def forward(self, seen):
        return torch.distributions.Categorical(logits=self.actor(seen)), self.critic(seen).squeeze(
            -1
        )


@torch.no_grad()
def play(agent, world, gamma, lam):
    """Let every cart move 128 times; return what was seen, done and gained (generalised advantages and returns)."""
    rows = []
    for _ in range(MOVES):
        seen = world.state.float()
        actions, value = agent(seen)
        action = actions.sample()
        fallen, late, reached = world.step(action)
        # An episode that ran out of time might have gone on: what was to come counts.
        reward = 1.0 + gamma * agent(reached.float())[1] * late
        rows.append(
            (seen, action, actions.log_prob(action), value, reward, (fallen | late).float())
        )
    seen, action, chance, value, reward, over = map(torch.stack, zip(*rows, strict=True))
    following = torch.cat([value[1:], agent(world.state.float())[1][None]])
    advantage, running = torch.zeros_like(value), torch.zeros(value.shape[1])
    for move in reversed(range(MOVES)):
        goes_on = 1 - over[move]
        surprise = reward[move] + gamma * goes_on * following[move] - value[move]
        advantage[move] = running = surprise + gamma * lam * goes_on * running
    parts = (seen, action, chance, advantage, advantage + value)
    return tuple(part.flatten(0, 1) for part in parts)


def update(agent, opt, played, hp):
    """Four passes over what was played, by the clipped objective (Schulman et al. 2017)."""
    for _ in range(EPOCHS):
        for chosen in torch.randperm(CARTS * MOVES).chunk(PARTS):
            seen, action, chance, advantage, gain = (part[chosen] for part in played)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            actions, value = agent(seen)
            ratio = (actions.log_prob(action) - chance).exp()
            kept = torch.minimum(
                ratio * advantage, ratio.clamp(1 - hp.clip, 1 + hp.clip) * advantage
            )
            loss = 0.5 * (value - gain).square().mean() - kept.mean()
            loss = loss - hp.entropy * actions.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            opt.step()
    return loss


def main():
    trial = gpusched.init(DEFAULTS)
    hp = trial.hparams
    world, agent = CartPole(CARTS, trial.seed), Agent(hp.width)
    opt = torch.optim.Adam(agent.parameters(), hp.lr, eps=1e-5)
    trial.track(agent=agent, opt=opt, world=world)

    for _ in trial.steps():
        loss = update(agent, opt, play(agent, world, hp.gamma, hp.lam), hp)
        trial.report(length=world.mean_length(), loss=loss)


if __name__ == "__main__":
    main()
