"""Physics-informed networks as a study of losses that disagree: problems, exact references, training."""

from octavo_config_grad.pinn.burgers import Burgers, cole_hopf
from octavo_config_grad.pinn.config import TrainingConfig, demo_setting, learning_rate_factor
from octavo_config_grad.pinn.derivatives import Fields, evaluate_fields
from octavo_config_grad.pinn.high_dimensional import HeatND, PoissonND, laplacian
from octavo_config_grad.pinn.kuramoto import KuramotoSivashinsky, etdrk4
from octavo_config_grad.pinn.loading import PROBLEMS, load_problem
from octavo_config_grad.pinn.methods import METHODS, Stepper, make_aggregator, make_stepper
from octavo_config_grad.pinn.navier_stokes import Beltrami, Kovasznay
from octavo_config_grad.pinn.network import MLP
from octavo_config_grad.pinn.problem import Condition, Objective, PointCounts, Problem, mean_square
from octavo_config_grad.pinn.reference import Errors, Reference, load_reference
from octavo_config_grad.pinn.result import History, TrainingResult, compare_runs
from octavo_config_grad.pinn.sampling import Box, LatinHypercube, Region
from octavo_config_grad.pinn.schrodinger import Schrodinger, split_step
from octavo_config_grad.pinn.train import Progress, train

__all__ = [
    "METHODS",
    "MLP",
    "PROBLEMS",
    "Beltrami",
    "Box",
    "Burgers",
    "Condition",
    "Errors",
    "Fields",
    "HeatND",
    "History",
    "Kovasznay",
    "KuramotoSivashinsky",
    "LatinHypercube",
    "Objective",
    "PointCounts",
    "PoissonND",
    "Problem",
    "Progress",
    "Reference",
    "Region",
    "Schrodinger",
    "Stepper",
    "TrainingConfig",
    "TrainingResult",
    "cole_hopf",
    "compare_runs",
    "demo_setting",
    "etdrk4",
    "evaluate_fields",
    "laplacian",
    "learning_rate_factor",
    "load_problem",
    "load_reference",
    "make_aggregator",
    "make_stepper",
    "mean_square",
    "split_step",
    "train",
]
