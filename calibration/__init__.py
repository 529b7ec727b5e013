"""Guarantees: from scored traces to a certified threshold, its report, and honest comparisons. No torch."""

from desist.calibration.accounting import PolicyRow, Share, oracle_rows, policy_row, table_text
from desist.calibration.calibrate import calibrate, certify, one_per_problem, problem_hash, refuse_overlap
from desist.calibration.certificate import CannotCertify, Certificate, load_certificate
from desist.calibration.curves import Curves, calibration_curves
from desist.calibration.group_keys import GROUPINGS, Grouping, GroupRule
from desist.calibration.groups import calibrate_groups, certify_groups, form_groups
from desist.calibration.losses import LOSSES, Loss, Truncated
from desist.calibration.outcomes import Outcomes, oracle_outcomes, policy_outcomes
from desist.calibration.plan import METHODS, Method, Plan
from desist.calibration.reliability import Reliability, order_p_value, score_reliability
from desist.calibration.replay_rows import ReplayRow
from desist.calibration.replay_table import ReplayTable, replay_table, replay_tables
from desist.calibration.report import ReportSection, report_html, write_report
from desist.calibration.rival_rows import Rival, RivalRow, RivalTable
from desist.calibration.rivals import compare_rivals
from desist.calibration.scorers import TraceScorer, stored
from desist.calibration.sheet import Sheet, operating_sheet
from desist.calibration.uncertified import Uncertified
from desist.calibration.weighted import estimate_weights, weighted_thresholds

__all__ = [
    "GROUPINGS",
    "LOSSES",
    "METHODS",
    "CannotCertify",
    "Certificate",
    "Curves",
    "GroupRule",
    "Grouping",
    "Loss",
    "Method",
    "Outcomes",
    "Plan",
    "PolicyRow",
    "Reliability",
    "ReplayRow",
    "ReplayTable",
    "ReportSection",
    "Rival",
    "RivalRow",
    "RivalTable",
    "Share",
    "Sheet",
    "TraceScorer",
    "Truncated",
    "Uncertified",
    "calibrate",
    "calibrate_groups",
    "calibration_curves",
    "certify",
    "certify_groups",
    "compare_rivals",
    "estimate_weights",
    "form_groups",
    "load_certificate",
    "one_per_problem",
    "operating_sheet",
    "oracle_outcomes",
    "oracle_rows",
    "order_p_value",
    "policy_outcomes",
    "policy_row",
    "problem_hash",
    "refuse_overlap",
    "replay_table",
    "replay_tables",
    "report_html",
    "score_reliability",
    "stored",
    "table_text",
    "weighted_thresholds",
    "write_report",
]
