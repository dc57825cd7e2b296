"""Budgets, names, numbers and dumps of the e-graph."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
from egglog import bindings

from egraph.dump import FORMATS, to_data, to_dot, to_egg, to_json, to_text
from egraph.encode import (
    COMMUTING,
    DTYPE_OF,
    FIXED,
    PREFIX_CONSTRUCTORS,
    Rows,
    load_constructor,
    tensor_constructor,
)
from egraph.graph import Budget, EGraph, EGraphError, ENode
from egraph.readback import Reader
from egraph.saturate import Phase, rule_seconds, saturate
from ir.node import postorder
from tests.egraph.consistency import disagreements
from tests.egraph.layers import decoder
from tests.egraph.test_streams import CASES
from tests.egraph.written import inputs, program

CHAIN = "u := add[d](X[i, d] * Y[d, e])\nadd[e](u * Z[e, c])"


def multiplies(graph: EGraph, extents: dict[str, int]) -> int:
    """The fewest products with which the results can be computed."""
    best: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for c, nodes in graph.classes.items():
            for n in nodes:
                if n.op != "Prefix" and all(k in best for k in n.children):
                    own = math.prod(extents[a] for a in graph.free[c]) if n.payload == ("mul",) else 0
                    found = own + sum(best[k] for k in n.children)
                    if found < best.get(c, found + 1):
                        best[c], changed = found, True
    return sum(best[r] for r in graph.roots)


def test_a_chain_of_contractions_is_found_from_its_cheap_end() -> None:
    extents = {"i": 512, "d": 4, "e": 512, "c": 4}
    p = program(CHAIN, extents)
    assert multiplies(saturate(p, phases=()), extents) == 2 * 512 * 4 * 512
    assert multiplies(saturate(p), extents) == 2 * 4 * 512 * 4
    assert multiplies(saturate(p, without=["contractions_associate"]), extents) == 2 * 512 * 4 * 512


def test_the_graph_of_a_program_as_written_has_one_node_a_class() -> None:
    p = decoder(1)
    graph = saturate(p, phases=())
    assert all(len(nodes) == 1 for nodes in graph.classes.values())
    assert len(graph.classes) == len(list(postorder(*(r.value for r in p.results))))


def test_numbers_follow_the_smallest_terms_and_every_inserted_term_has_a_class() -> None:
    p = decoder(1)
    graph = saturate(p)
    assert list(graph.classes) == list(range(len(graph.classes)))
    assert all(any(all(k < c for k in n.children) for n in nodes) for c, nodes in graph.classes.items())
    for t in postorder(*(r.value for r in p.results)):
        assert graph.free[graph.class_of[t]] <= t.free
    assert graph.roots == tuple(graph.class_of[r.value] for r in p.results)


def test_equal_programs_give_equal_graphs_whatever_the_hash_seed() -> None:
    text = CASES["attention with a sink"][0]
    here = saturate(program(text))
    assert here == saturate(program(text)) and here != saturate(program(text), "strict")
    script = (
        "import json; from egraph.dump import to_data; from egraph.saturate import saturate; "
        "from tests.egraph.written import program; import sys; "
        "print(json.dumps(to_data(saturate(program(sys.argv[1])))))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.getcwd()}
    there = subprocess.run(
        [sys.executable, "-c", script, text], env=env, capture_output=True, text=True, check=True
    )
    assert json.loads(there.stdout) == json.loads(json.dumps(to_data(here)))


def test_a_spent_budget_stops_and_says_so() -> None:
    p = program(CASES["attention"][0])
    assert saturate(p, budget=Budget(nodes=20)).report.stop == "nodes"
    assert saturate(p, budget=Budget(iterations=1)).report.stop == "iterations"
    assert saturate(p, budget=Budget(seconds=0.0)).report.stop == "seconds"
    for budget in (
        Budget(nodes=1),
        Budget(nodes=20),
        Budget(iterations=0),
        Budget(iterations=1),
        Budget(seconds=0.0),
    ):
        partial = saturate(p, budget=budget)
        assert list(disagreements(partial, inputs(p))) == []
        assert partial.free.keys() == partial.dtype.keys() == partial.classes.keys()


def test_the_report_accounts_for_the_time_and_counts_matches() -> None:
    report = saturate(program(CASES["attention"][0])).report
    parts = (
        report.build_seconds + report.insert_seconds + report.read_seconds + sum(p.seconds for p in report.phases)
    )
    assert report.stop == "saturated"
    assert 0 <= report.seconds - parts < 0.01
    rules = sum(x.seconds for x in (*report.laws, *report.analyses))
    assert rules == pytest.approx(sum(p.seconds for p in report.phases), rel=0.05, abs=0.002)
    assert {"dtype", "free", "congruence", "scheduling"} <= {x.name for x in report.analyses}
    matches = {x.name: x.matches for x in report.laws}
    assert matches["sum_of_products_streams"] > 0 and matches["sum_of_a_constant"] == 0


def test_what_rows_say_of_their_terms_is_what_the_rules_find(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [saturate(p) for p in (decoder(2), program(CASES["attention, guarded"][0]))]
    monkeypatch.setattr("egraph.encode.KNOWN", "(relation in_known (i64 String String i64))")
    assert known == [saturate(g.program) for g in known]


def test_an_unknown_ruleset_is_refused() -> None:
    with pytest.raises(EGraphError, match="phase odd: 'magic' is none of"):
        saturate(program(CHAIN), phases=[Phase("odd", ("magic",))])


def test_a_whole_tensor_stands_beside_its_term() -> None:
    p = program(CHAIN)
    (root,) = (r.value for r in p.results)
    inner = next(t for t in postorder(root) if t.free == {"i", "e"} and type(t).__name__ == "Fold")
    loads = tuple(t for t in postorder(inner) if type(t).__name__ == "Load")
    graph = saturate(p, tags={"matmul 1": (inner, loads), "matmul 2": (root, (inner,))})
    (tensor,) = graph.tensors[graph.class_of[inner]]
    assert tensor.payload == ("matmul 1",) and tensor.children == tuple(graph.class_of[x] for x in loads)
    assert graph.classes == saturate(p).classes
    assert "matmul 2" in to_text(graph) and "matmul 2" in to_json(graph)


def test_dumps_are_complete() -> None:
    graph = saturate(program(CASES["attention"][0]))
    data = json.loads(to_json(graph))
    assert sum(len(c["nodes"]) for c in data["classes"].values()) == graph.nodes
    assert {"times"} == set(data) - set(to_data(graph))
    assert json.dumps(to_data(graph)) == json.dumps(to_data(saturate(graph.program)))
    assert to_dot(graph).count("subgraph") == len(graph.classes)
    assert all(FORMATS[name](graph) for name in FORMATS)


def test_the_egglog_dump_is_read_back_as_the_same_graph() -> None:
    p = program(CASES["attention, causal"][0])
    root = p.results[0].value
    loads = tuple(t for t in postorder(root) if type(t).__name__ == "Load")
    graph = saturate(p, tags={"whole 1": (root, loads)})
    egg = bindings.EGraph()
    egg.run_program(*egg.parse_program(to_egg(graph)))
    reader = Reader(egg, Rows({}, (), {}, ""), p)
    functions = reader.functions
    number = {reader.id(f.rows[0].output): int(n[2:]) for n, f in functions.items() if f.is_let_binding}
    assert sorted(number.values()) == list(graph.classes)
    table = {c.name: c for c in (*FIXED, *PREFIX_CONSTRUCTORS, load_constructor(2), tensor_constructor(len(loads)))}
    found: dict[str, set[tuple[int, ENode]]] = {"nodes": set(), "tensors": set()}
    for c in table.values():
        for row in functions[c.name].rows if c.name in functions else ():
            n = reader.decoded(c, row)
            kids = [number[k] for k in n.children]
            sort = n.op == "Binary" and n.payload[0] in COMMUTING
            made = ENode(n.op, n.payload, tuple(sorted(kids) if sort else kids))
            found["tensors" if n.op == "Tensor" else "nodes"].add((number[reader.id(row.output)], made))
    assert found["nodes"] == {(c, n) for c, nodes in graph.classes.items() for n in nodes}
    assert found["tensors"] == {(c, n) for c, nodes in graph.tensors.items() for n in nodes}

    def told(name: str) -> dict[int, bindings.Value]:
        return {number[reader.id(r.inputs[0])]: r.output for r in functions[name].rows}

    assert {c: reader.axes(v) for c, v in told("free").items()} == graph.free
    assert {c: reader.axes(v) for c, v in told("folded").items()} == graph.folded
    assert {c: DTYPE_OF[egg.value_to_i64(v)] for c, v in told("dtype").items()} == graph.dtype
    assert set(told("safe")) == graph.safe and set(told("positive")) == graph.positive
    streams = {(number[reader.id(r.inputs[0])], reader.string(r.inputs[1])) for r in functions["streams"].rows}
    assert streams == graph.streams
    roots = {egg.value_to_i64(r.inputs[0]): number[reader.id(r.inputs[1])] for r in functions["root"].rows}
    assert tuple(roots[k] for k in sorted(roots)) == graph.roots


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_nodes_grow_linearly_with_layers(layers: int) -> None:
    nodes = {n: saturate(decoder(n)).nodes for n in (1, layers)}
    assert nodes[layers] <= layers * nodes[1]


def test_the_time_of_a_law_is_read_from_the_printed_report() -> None:
    text = 'R { search_and_apply_time_per_rule: {"a/1": 2.5ms, "b": 7µs}, num_matches_per_rule: {"a/1": 3} }'
    assert dict(rule_seconds(text)) == {"a/1": pytest.approx(2.5e-3), "b": pytest.approx(7e-6)}
