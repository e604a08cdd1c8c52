"""Sweeps: the same recipe with several values of some fields; the validation score says which was
best.

    train.learning_rate=0.1,0.01,0.001     values: a grid, every combination of them is tried
    train.learning_rate=1e-4..1e-1         a range: optuna proposes values, on a logarithmic scale
                                           if it spans a decade
    seed=1,2,3                             seeds are no settings: the others are ranked by their
                                           mean over these

Every trial is a run of its own in the sweep's folder, named by its values, so whoever comes to the
same values again, after a kill or from another process, goes on with that run or reads off what it
reached.

    axes.py      fields and what they may be
    trials.py    one trial
    remote.py    one trial on a machine of a fleet
    outcome.py   what is known of all
    study.py     a search by optuna
    run.py       sweep(): a grid or a search
"""

from regard.sweep.axes import Axis, axis, points
from regard.sweep.outcome import Outcome, Setting, Trial
from regard.sweep.run import default_folder, is_free_for, number_of_trials, sweep
from regard.sweep.study import TRIAL_KEY
from regard.sweep.trials import ENDED, Make, MakeReporter, Trials, folder_name, forward_message

__all__ = [
    "ENDED",
    "TRIAL_KEY",
    "Axis",
    "Make",
    "MakeReporter",
    "Outcome",
    "Setting",
    "Trial",
    "Trials",
    "axis",
    "default_folder",
    "folder_name",
    "forward_message",
    "is_free_for",
    "number_of_trials",
    "points",
    "sweep",
]
