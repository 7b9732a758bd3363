"""Conformal filtering of reasoning over a deducibility graph, from a model's answer to a certified text.

Implements subgraph filtering and descendant weight boosting with their guarantee, the baselines they are compared with,
and what is needed around them: claims and graphs from raw text, annotation, calibration curves, and statements of what
is guaranteed.

Citation:
    M. Rubin-Toles, M. Gambhir, K. Ramji, A. Roth, S. Goel. Conformal Language Model Reasoning with Coherent
    Factuality. ICLR 2025. arXiv:2505.17126.
"""

from octavo_coherent_factuality.annotate import annotate_claims, annotate_subsets
from octavo_coherent_factuality.annotators import (
    Annotator,
    CallableAnnotator,
    Gold,
    Independent,
    Partial,
    Silver,
    nonconformity,
)
from octavo_coherent_factuality.arithmetic import annotate_arithmetic
from octavo_coherent_factuality.baselines import fixed_threshold, no_filtering, oracle_retained, oracle_subset
from octavo_coherent_factuality.curve import CalibrationCurve, CurvePoint, calibration_curve
from octavo_coherent_factuality.equations import EquationChecker, check_equations
from octavo_coherent_factuality.family import NestedFamily
from octavo_coherent_factuality.filter import FilteredOutput, FilterMetrics, SplitConformalFilter
from octavo_coherent_factuality.generator import DerivationGenerator, generate_traces
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.groups import GroupConformalFilter, WeightedConformalFilter
from octavo_coherent_factuality.guarantee import GuaranteeReport, guarantee_report
from octavo_coherent_factuality.heuristics import split_steps, symbol_graph, trace_from_text
from octavo_coherent_factuality.io import read_traces, trace_from_json, trace_to_json, write_traces
from octavo_coherent_factuality.llm import LLM, CachedLLM, OpenAICompatible, ReplayLLM, TransformersLLM
from octavo_coherent_factuality.method import METHODS, FilteringMethod
from octavo_coherent_factuality.online import OnlineFilter
from octavo_coherent_factuality.persist import load_filter, save_filter
from octavo_coherent_factuality.pipeline import LLMJudge, ReasoningPipeline, merge_claims
from octavo_coherent_factuality.quantile import conformal_threshold, coverage_law, pac_rank, quantile_rank
from octavo_coherent_factuality.render import plot_curves, trace_page
from octavo_coherent_factuality.risk_control import RiskControlFilter
from octavo_coherent_factuality.scorers import (
    Combined,
    DescendantWeighted,
    FrequencyScorer,
    LogProb,
    Ordinal,
    Ranked,
    ScoreColumn,
    SelfConfidence,
)
from octavo_coherent_factuality.trace import Claim, ReasoningTrace, claims_from_arrays
from octavo_coherent_factuality.verification import VerificationPlan, cheapest_verification, plan_verification

__all__ = [
    "LLM",
    "METHODS",
    "Annotator",
    "CachedLLM",
    "CalibrationCurve",
    "CallableAnnotator",
    "Claim",
    "Combined",
    "CurvePoint",
    "DeducibilityGraph",
    "DerivationGenerator",
    "DescendantWeighted",
    "EquationChecker",
    "FilterMetrics",
    "FilteredOutput",
    "FilteringMethod",
    "FrequencyScorer",
    "Gold",
    "GroupConformalFilter",
    "GuaranteeReport",
    "Independent",
    "LLMJudge",
    "LogProb",
    "NestedFamily",
    "OnlineFilter",
    "OpenAICompatible",
    "Ordinal",
    "Partial",
    "Ranked",
    "ReasoningPipeline",
    "ReasoningTrace",
    "ReplayLLM",
    "RiskControlFilter",
    "ScoreColumn",
    "SelfConfidence",
    "Silver",
    "SplitConformalFilter",
    "TransformersLLM",
    "VerificationPlan",
    "WeightedConformalFilter",
    "annotate_arithmetic",
    "annotate_claims",
    "annotate_subsets",
    "calibration_curve",
    "cheapest_verification",
    "check_equations",
    "claims_from_arrays",
    "conformal_threshold",
    "coverage_law",
    "fixed_threshold",
    "generate_traces",
    "guarantee_report",
    "load_filter",
    "merge_claims",
    "no_filtering",
    "nonconformity",
    "oracle_retained",
    "oracle_subset",
    "pac_rank",
    "plan_verification",
    "plot_curves",
    "quantile_rank",
    "read_traces",
    "save_filter",
    "split_steps",
    "symbol_graph",
    "trace_from_json",
    "trace_from_text",
    "trace_page",
    "trace_to_json",
    "write_traces",
]
