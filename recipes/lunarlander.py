"""Proximal policy optimisation (``ppo.py``) on gymnasium's LunarLander: 16 landers at once, on one CPU core.

    pip install 'gymnasium[box2d]'
    gpusched run lunarlander.yaml                   # HyperSched
    (lunarlander.yaml has the command for HyperDrive's POP)
    python lunarlander.py --lr 1e-3 --max-steps 40  # one configuration, alone

A step is a report: 128 moves of every lander, then the update. The metric is the mean reward of the last 100 episodes,
so a target of 200 is one that was held for 100 episodes, as in HyperDrive (Middleware'17), section 6.3.

Box2D's worlds cannot be saved. But an episode follows from its seed and the actions in it, so these are in the
checkpoint and are played again at a resume: a paused trial goes on in the middle of its episodes.
"""

import ppo
import torch

import gpusched

try:
    import Box2D  # noqa: F401 - the physics of LunarLander
    import gymnasium
except ImportError:
    raise SystemExit(
        "lunarlander needs gymnasium and Box2D: pip install 'gymnasium[box2d]'"
    ) from None

DEFAULTS = {**ppo.DEFAULTS, "lr": 1e-3, "gamma": 0.995}
LANDERS, CRASH, SCALE = 16, -100.0, 0.01


class Landers:
    """Landers that start anew when they have landed, have crashed, or 1000 moves are over.

    ``recent`` has the rewards of the last 100 episodes; those that are still to come count as crashes.
    """

    METRIC, SEEN, ACTIONS = "reward", 8, 4

    def __init__(self, landers, seed):
        self.worlds = [gymnasium.make("LunarLander-v3") for _ in range(landers)]
        self.seed, self.episodes = seed, 0
        self.recent, self.finished = torch.full((ppo.RECENT,), CRASH), 0
        self.state = torch.zeros(landers, self.SEEN)
        self.number, self.reward, self.actions = [0] * landers, [0.0] * landers, [[]] * landers
        for lander in range(landers):
            self.begin(lander)

    def begin(self, lander):
        """Begin the next episode, with a ground of its own."""
        self.number[lander], self.reward[lander], self.actions[lander] = self.episodes, 0.0, []
        self.episodes += 1
        self.reset(lander)

    def reset(self, lander):
        seed = (self.seed << 20) + self.number[lander]
        self.state[lander] = torch.from_numpy(self.worlds[lander].reset(seed=seed)[0])

    def seen(self):
        return self.state.clone()

    def step(self, actions):
        """Fire the engines; return rewards in hundreds, who has landed or crashed, who has run out of time."""
        rewards = torch.zeros(len(actions))
        ended, late = torch.zeros(2, len(actions), dtype=torch.bool)
        for lander, action in enumerate(actions.tolist()):
            self.actions[lander].append(action)
            seen, reward, ended[lander], late[lander], _ = self.worlds[lander].step(action)
            self.state[lander], rewards[lander] = torch.from_numpy(seen), reward
            self.reward[lander] += float(reward)
        late &= ~ended
        reached = self.state.clone()
        for lander in (ended | late).nonzero().flatten().tolist():
            self.recent[self.finished % ppo.RECENT] = self.reward[lander]
            self.finished += 1
            self.begin(lander)
        return rewards * SCALE, ended, late, reached

    def state_dict(self):
        names = ("seed", "episodes", "recent", "finished", "number", "reward", "actions")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state):
        vars(self).update(state)
        for lander, actions in enumerate(self.actions):
            self.reset(lander)
            for action in actions:
                seen, *_ = self.worlds[lander].step(action)
                self.state[lander] = torch.from_numpy(seen)


def main():
    trial = gpusched.init(DEFAULTS)
    ppo.train(trial, Landers(LANDERS, trial.seed))


if __name__ == "__main__":
    main()
