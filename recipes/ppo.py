"""Proximal policy optimisation (Schulman et al. 2017) for worlds of which a few numbers are seen.

Imported by ``cartpole`` and ``lunarlander``. A world plays several episodes side by side, each of which begins anew
when it is over. ``SEEN`` and ``ACTIONS`` are numbers of inputs and choices; ``recent`` has the scores of the last
episodes, reported as ``METRIC``; ``seen()`` returns what is seen now; ``step(actions)`` returns rewards, which episodes
have ended by themselves, which for want of time, and what was seen last in each.
"""

import torch
from torch import nn

DEFAULTS = {"lr": 3e-3, "gamma": 0.99, "lam": 0.95, "clip": 0.2, "entropy": 0.01, "width": 64}
MOVES, EPOCHS, PARTS = 128, 4, 4
RECENT = 100


class Agent(nn.Module):
    def __init__(self, seen, actions, width):
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(
                *(nn.Linear(seen, width), nn.Tanh()),
                *(nn.Linear(width, width), nn.Tanh()),
                nn.Linear(width, outputs),
            )
            for outputs in (actions, 1)
        )

    def forward(self, seen):
        return torch.distributions.Categorical(logits=self.actor(seen)), self.critic(seen).squeeze(
            -1
        )


@torch.no_grad()
def play(agent, world, gamma, lam):
    """Make 128 moves in every world; return what was seen, done and gained (generalised advantages and returns)."""
    rows = []
    for _ in range(MOVES):
        seen = world.seen()
        actions, value = agent(seen)
        action = actions.sample()
        reward, ended, late, reached = world.step(action)
        # An episode that ran out of time might have gone on: what was to come counts.
        reward = reward + gamma * agent(reached)[1] * late
        rows.append((seen, action, actions.log_prob(action), value, reward, (ended | late).float()))
    seen, action, chance, value, reward, over = map(torch.stack, zip(*rows, strict=True))
    following = torch.cat([value[1:], agent(world.seen())[1][None]])
    advantage, running = torch.zeros_like(value), torch.zeros(value.shape[1])
    for move in reversed(range(MOVES)):
        goes_on = 1 - over[move]
        surprise = reward[move] + gamma * goes_on * following[move] - value[move]
        advantage[move] = running = surprise + gamma * lam * goes_on * running
    parts = (seen, action, chance, advantage, advantage + value)
    return tuple(part.flatten(0, 1) for part in parts)


def update(agent, opt, played, hp):
    """Pass four times over what was played, by the clipped objective."""
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(played[0])).chunk(PARTS):
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


def train(trial, world):
    """Report after every update, for as long as the search wants."""
    hp = trial.hparams
    agent = Agent(world.SEEN, world.ACTIONS, hp.width)
    opt = torch.optim.Adam(agent.parameters(), hp.lr, eps=1e-5)
    for _ in trial.steps(agent=agent, opt=opt, world=world):
        loss = update(agent, opt, play(agent, world, hp.gamma, hp.lam), hp)
        trial.report(**{world.METRIC: world.recent.mean(), "loss": loss})
