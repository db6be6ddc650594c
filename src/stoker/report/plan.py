"""A plan as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.plan.plan import Plan
from stoker.report.table import render_advice, render_table
from stoker.units import render_hours

# Raised when a key changes its meaning or goes away; keys may be added.
FORMAT = 1


def render_plan(plan: Plan) -> str:
    """Return the plan as a table: each number, why, and the fact behind it by its number."""
    sources = dict.fromkeys(each.source for each in plan.choices if each.source)
    if plan.cost:
        sources[plan.cost.source] = None
    number = {source: index for index, source in enumerate(sources, 1)}

    def marked(text: str, source: str | None) -> str:
        return f"{text} [{number[source]}]" if source else text

    rows = [(each.name, each.value, marked(each.reason, each.source)) for each in plan.choices]
    parts = [f"{_title(plan)}\n", render_table(rows), "", _cost(plan, marked)]
    if sources:
        parts += ["", "facts from"]
        parts += [f"  [{index}] {source}" for source, index in number.items()]
    return "\n".join(parts)


def render_notices(plan: Plan) -> str:
    """Return what the user should know before submitting."""
    return "\n".join(render_advice(each.what, each.why, each.fix, "note") for each in plan.notices)


def _title(plan: Plan) -> str:
    shape = plan.shape
    what = f"{shape.gpus} x {shape.gpu.title or shape.gpu.name}" if shape.gpu else "a CPU job"
    return f"plan for {plan.spec.script} on {plan.cluster.title}: {what}"


def _cost(plan: Plan, marked: Callable[[str, str | None], str]) -> str:
    cost = plan.cost
    if cost is None:
        unit = plan.cluster.billing.unit
        return "cost: " + (
            f"in {unit}; the formula is not known" if unit else "not known for this site"
        )
    hours = render_hours(plan.time_s)
    total = f"{cost.total:,.6g} {cost.unit} for {hours}, {cost.per_hour:,.6g} an hour"
    return f"cost: {total}\n      {marked(cost.formula, cost.source)}"


def plan_json(plan: Plan, script: str) -> dict[str, Any]:
    """Return the plan as plain values."""
    shape, launch, cost = plan.shape, plan.launch, plan.cost
    return {
        "format": FORMAT,
        "cluster": plan.cluster.name,
        "status": plan.cluster.status,
        "command": list(plan.spec.command),
        "framework": plan.framework,
        "partition": shape.partition.name if shape.partition else None,
        "nodes": shape.nodes,
        "gpus": shape.gpus,
        "gpus_per_node": shape.gpus_per_node,
        "gpu": shape.gpu.name if shape.gpu else None,
        "tasks_per_node": launch.tasks_per_node,
        "processes_per_node": launch.processes_per_node,
        "cpus_per_task": plan.cpus_per_task,
        "mem_gib_per_node": plan.mem_gib,
        "local_disk_gb_per_node": plan.disk_gb,
        "time_s": plan.time_s,
        "launcher": launch.form,
        "threads": plan.threads,
        "environment": plan.environment.title,
        "directives": [{"option": name, "value": value} for name, value in plan.directives],
        "cost": None
        if cost is None
        else {
            "unit": cost.unit,
            "total": cost.total,
            "per_hour": cost.per_hour,
            "formula": cost.formula,
            "source": cost.source,
        },
        "reasons": [each.__dict__ for each in plan.choices],
        "notices": [each.__dict__ for each in plan.notices],
        "script": script,
    }
