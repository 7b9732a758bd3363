"""Multi-task learning as a study of losses that disagree: digits and CelebA, shared trunk and task heads."""

from octavo_config_grad.mtl.celeba import load_celeba
from octavo_config_grad.mtl.data import MultiTaskData, Split, digit_attributes, digit_pairs
from octavo_config_grad.mtl.study import (
    STUDY_METHODS,
    StudyConfig,
    StudyResult,
    TaskNetwork,
    TaskResult,
    run_study,
    train_tasks,
)

__all__ = [
    "STUDY_METHODS",
    "MultiTaskData",
    "Split",
    "StudyConfig",
    "StudyResult",
    "TaskNetwork",
    "TaskResult",
    "digit_attributes",
    "digit_pairs",
    "load_celeba",
    "run_study",
    "train_tasks",
]
