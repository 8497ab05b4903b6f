"""Policies for one trial: ``Seesaw`` takes it through 1 -> 2 -> 1 atoms and a pause, ``Steady`` leaves it alone."""

from gpusched.policies import Complete, Options, Pause, Policy, Resize, Resume, Start


class Steady(Policy):
    options_type = Options

    def on_report(self, view, trial):
        return [Complete(trial.id, "complete")] if trial.step >= self.options.R else []

    def on_capacity(self, view):
        paused = [Resume(number) for number in view.paused]
        return paused or ([] if view.trials else [Start(1, "the one trial")])


class Seesaw(Steady):
    def on_report(self, view, trial):
        if trial.is_resizing or trial.steps_since_resize < 2:
            return []
        if trial.incarnation < 3:
            return [Resize(trial.id, 3 - trial.atoms, "to the other size")]
        if trial.incarnation == 3:
            return [Pause(trial.id, "a pause")]
        return super().on_report(view, trial)
