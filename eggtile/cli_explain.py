"""`eggtile explore`, `dump`, `diff`, `query`: the forms of a program, why they are equal, the graph that holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import rich
import typer
from rich.table import Table

from eggtile.cli_options import Code, Inputs, Json, Numerics, Program, Target, emit_json, options_of, started
from eggtile.differ import differences
from eggtile.explore import form_signature, report
from eggtile.graph_dump import TEXTS, to_object
from eggtile.pipeline import LISTED, Compiled, Options, Region, RequestError, choose_forms
from eggtile.query import answers
from eggtile.why import chain
from egraph.laws import LAWS

Dump = Annotated[Path, typer.Argument(help="A file that `dump --format json` wrote.", show_default=False)]


app = typer.Typer()


@app.command()
def explore(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many distinct forms to find.")] = LISTED,
    numerics: Numerics = "default",
    target: Target = "sm_90a",
    why: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Show the steps from form A to form B; a form is its number, or default."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="Show the best form without this law beside the best with it.")
    ] = None,
    json_: Json = False,
) -> None:
    """List the distinct equivalent forms of a program with their costs, sweeps, laws and errors."""
    check_laws(without or [])
    compiled = started(program, code, inputs, options_of(numerics, target, k=k, explain=True))[1]
    choose_forms(compiled)
    if without:
        other = choose_forms(restarted(compiled, tuple(without)))
        rows = [ablated(a, b, without) for a, b in zip(compiled.regions, other.regions, strict=True)]
        return emit_json({"regions": rows}) if json_ else print_ablated(rows, without)
    if why is not None:
        chains = [chain(region, *why) for region in compiled.regions]
        return emit_json({"regions": chains}) if json_ else print_chains(chains)
    found = report(compiled)
    if json_:
        return emit_json(found)
    for part in found.get("regions", [found]):
        rich.print(forms_table(part))
        print_laws(part)
    return None


def print_laws(part: dict[str, Any]) -> None:
    """The laws behind forms, each list once."""
    forms: dict[tuple[str, ...], list[str]] = {}
    for f in part["forms"]:
        forms.setdefault(tuple(f["laws"]), []).append("default" if f["default"] else str(f["id"]))
    for laws, ids in forms.items():
        typer.echo(f"laws of {', '.join(ids)}: {', '.join(laws) or 'none'}")


def check_laws(names: list[str]) -> None:
    """Refuse the name of a law that is none."""
    for name in names:
        if name not in LAWS:
            raise RequestError(f"no law is named {name}; see eggtile laws")


def restarted(compiled: Compiled, without: tuple[str, ...]) -> Compiled:
    """The same program before its forms are chosen, with laws left out."""
    given = vars(compiled.options) | {"without": without, "k": 1}
    return Compiled(compiled.captured, compiled.arity, compiled.lowered, Options(**given), compiled.clock)


def ablated(with_: Region, without: Region, names: list[str]) -> dict[str, Any]:
    """The best form with all laws and the best without some."""
    rows = [
        {"cost_us": f.cost_us, "signature": form_signature(f), "laws": list(f.laws)}
        for f in (with_.forms[0], without.forms[0])
    ]
    return {"without": names, "best": rows[0], "best_without": rows[1]}


def print_ablated(rows: list[dict[str, Any]], names: list[str]) -> None:
    """A table of two rows for each region."""
    for row in rows:
        table = Table("laws", "cost us", "kernels: loops, contractions, states", "laws used")
        for label, key in (("all", "best"), (f"without {', '.join(names)}", "best_without")):
            best = row[key]
            table.add_row(label, f"{best['cost_us']:.2f}", "\n".join(best["signature"]), " ".join(best["laws"]))
        rich.print(table)


def print_chains(chains: list[dict[str, Any]]) -> None:
    """The steps of every region: what equals what by which law, and what the law needs."""
    for c in chains:
        for end in (c["from"], c["to"]):
            typer.echo(f"form {end['form']}: " + "; ".join(end["signature"]))
        typer.echo(
            f"{len(c['steps'])} steps, each replayed on terms; {c['shared_steps']} more lead to both forms"
            + (f"; {c['not_replayed']} matches of laws could not be replayed" if c["not_replayed"] else "")
        )
        for line in c["where"]:
            typer.echo(f"     {line}")
        for n, s in enumerate(c["steps"], 1):
            error = "" if s["error"] is None else f", by numbers to {s['error']:.0e}"
            typer.echo(f"{n:3}. {'undo ' if s['undo'] else ''}{s['law']} ({s['class']}{error})")
            typer.echo(f"       {s['before']}\n    =  {s['after']}")
            for fact in s["given"]:
                typer.echo(f"       as {fact}")
        typer.echo("Both sides of a step are equal, so either may stand for the other where a form reads it.")
        if any("new[" in s["after"] for s in c["steps"]):
            typer.echo(
                "old[j](x) is x over the positions of j before a step, new[j](x) with that step: a sweep carries x "
                "where new[j](x) is\nsaid in terms of old values. ratio[j](x) is new[j](x) / old[j](x), delta[j](x) "
                "is new[j](x) - old[j](x)."
            )


def forms_table(part: dict[str, Any]) -> Table:
    """The forms of one region as a table."""
    graph = part["egraph"]
    table = Table(title=f"{graph['classes']} classes, {graph['nodes']} nodes")
    for name in ("form", "cost us", "kernels", "sweeps", "flops", "bytes", "class", "error"):
        table.add_column(name, overflow="fold")
    for f in part["forms"]:
        swept: dict[str, int] = {}
        for kernel in f["kernels"]:
            for axis, count in kernel["sweeps"].items():
                swept[axis] = swept.get(axis, 0) + count
        mark = "*" if f["chosen"] else "default" if f["default"] else ""
        error = "" if f["max_rel_err"] is None else f"{f['max_rel_err']:.1e}"
        sweeps = " ".join(f"{a}:{n}" for a, n in sorted(swept.items()))
        row = (f["cost_us"], len(f["kernels"]), sweeps, f["flops"], f["bytes"], f["class"], error)
        table.add_row(f"{f['id']} {mark}", f"{row[0]:.2f}", *map(str, row[1:]))
    return table


# ---- dumps


@app.command()
def dump(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    format_: Annotated[str, typer.Option("--format", help="json, text, egg, dot, svg or html.")] = "json",
    output: Annotated[
        Path | None, typer.Option("-o", help="The file to write (standard output if absent).")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many distinct forms a JSON dump holds.")] = LISTED,
    numerics: Numerics = "default",
) -> None:
    """Write the saturated e-graph of every region; as JSON with its forms."""
    if format_ != "json" and format_ not in TEXTS:
        raise RequestError(f"unknown format {format_}; formats are json, {', '.join(TEXTS)}")
    suffix = output.suffix[1:] if output is not None else format_
    if suffix != format_ and suffix in ("json", *TEXTS):
        raise RequestError(f"{output} is named like {suffix}, but the format is {format_}; say --format {suffix}")
    options = options_of(numerics, k=k if format_ == "json" else 1, explain=True)
    compiled = choose_forms(started(program, code, inputs, options)[1])
    if format_ == "json":
        text = json.dumps(to_object(compiled), indent=1, default=str)
    else:
        text = "\n".join(TEXTS[format_](r.graph) for r in compiled.regions)
    if output is None:
        return typer.echo(text)
    try:
        output.write_text(text + "\n")
    except OSError as e:
        raise RequestError(f"cannot write {output}: {e.strerror}") from None
    return None


def loaded(path: Path) -> dict[str, Any]:
    """A dump from a file."""
    try:
        data = json.loads(path.read_text())
    except OSError as e:
        raise RequestError(f"cannot read {path}: {e.strerror}") from None
    except json.JSONDecodeError as e:
        raise RequestError(f"{path} is not JSON: {e.msg} in line {e.lineno}") from None
    if not isinstance(data, dict) or "regions" not in data:
        raise RequestError(f"{path} is not a dump; eggtile dump --format json makes one")
    return data


@app.command()
def diff(a: Dump, b: Dump, json_: Json = False) -> None:
    """Say how two dumps differ: classes and nodes by their terms, forms, laws."""
    found = differences(loaded(a), loaded(b))
    if json_:
        return emit_json(found)
    for what, sides in found.items():
        for sign, key in (("-", "only_a"), ("+", "only_b")):
            typer.echo(
                "\n".join(f"{sign} {what[:-1] if what != 'classes' else 'class'} {x}" for x in sides[key]) or "",
                nl=bool(sides[key]),
            )
    if not any(side for sides in found.values() for side in sides.values()):
        typer.echo("the dumps hold the same classes, nodes, forms and laws")
    return None


@app.command()
def query(
    a: Dump, text: Annotated[str, typer.Argument(metavar="QUERY", help=answers.__doc__)], json_: Json = False
) -> None:
    """Find forms or classes of a dump, like: forms where sweeps(j) == 1 and reads(x) <= 2."""
    found = answers(loaded(a), text)
    if json_:
        return emit_json(found)
    for row in found:
        typer.echo(" ".join(f"{k}={v}" for k, v in row.items()))
    typer.echo(f"{len(found)} found", err=True)
    return None
