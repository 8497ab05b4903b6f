"""``Seesaw`` takes its first trial through 1 -> 2 -> 1 atoms and a pause, and leaves the second alone, after it."""

from gpusched.policies import Complete, Options, Pause, Policy, Resize, Resume, Start


class Seesaw(Policy):
    options_type = Options

    def on_report(self, view, trial):
        if trial.id == 0 and not trial.is_resizing and trial.steps_since_launch >= 2:
            if trial.incarnation < 3:
                return [Resize(trial.id, 3 - trial.atoms, "to the other size")]
            if trial.incarnation == 3:
                return [Pause(trial.id, "a pause")]
        return [Complete(trial.id, "complete")] if trial.step >= self.options.R else []

    def on_capacity(self, view):
        if view.live:
            return []
        paused = [Resume(number) for number in view.paused]
        return paused or ([Start(1, "the next")] if view.can_draw else [])
