"""Writes prometheus-rule.yaml, which has the alert rules of packaging/monitoring/ledge.rules.yml for the Prometheus Operator.

python3 packaging/kubernetes/monitoring/rules.py
"""
from pathlib import Path

HERE = Path(__file__).resolve().parent
RULES = HERE.parents[1] / "monitoring" / "ledge.rules.yml"
HEAD = """\
# Written by packaging/kubernetes/monitoring/rules.py from packaging/monitoring/ledge.rules.yml: edit that file.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: ledge
spec:
"""


def prometheus_rule():
    """The text of the file. The groups are those of Prometheus's own format, so they are only indented."""
    lines = RULES.read_text().splitlines()
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    (HERE / "prometheus-rule.yaml").write_text(prometheus_rule())
