"""`eggtile explore`, `dump`, `diff`, `query`: the forms of a program, why they are equal, the graph that holds them."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from eggtile import stores
from eggtile.cli_options import (
    BudgetText,
    Code,
    Inputs,
    Json,
    Numerics,
    Program,
    Store,
    Target,
    budget_of,
    emit_json,
    options_of,
    started,
)
from eggtile.deadline import Deadline, said
from eggtile.differ import differences
from eggtile.dump_file import loaded
from eggtile.echo import cut
from eggtile.explore import report
from eggtile.explorer import page
from eggtile.files import write
from eggtile.graph_dump import FORMATS, written
from eggtile.pipeline import LISTED, Compiled, Region, RequestError, choose_forms, restarted
from eggtile.query import answers
from eggtile.tables import show
from eggtile.views import cut_short, idle, stopped
from eggtile.why import BY_DEFINITION, chains
from egraph.laws import LAWS, Law
from egraph.matches import parsed
from egraph.matches import shown as spelled
from extract.signature import form_signature
from ir.text import show_term

Dump = Annotated[Path, typer.Argument(help="A file that `dump --format json` wrote.", show_default=False)]


app = typer.Typer()
LEAST_SHARE = 1e-6  # of a cost: two that differ by less are equal


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
        typer.Option(help="Show the steps from form A to form B; a form is its number, or default.", metavar="A B"),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            help="Show what the best form costs without this law; of several, without each and without all."
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write all of it as one page to this file.")] = None,
    store: Store = None,
    budget: BudgetText = None,
    json_: Json = False,
) -> None:
    """List the distinct equivalent forms of a program with their costs, sweeps, laws and errors."""
    asked = [name for name, given in (("--why", why), ("--without", without), ("--html", html)) if given]
    if len(asked) > 1:
        raise RequestError(f"{' and '.join(asked)} are asked for; give one of them")
    check_laws(without or [])
    options = options_of(numerics, target, k=k, explain=True, evidence=stores.opened(store), **budget_of(budget))
    compiled = choose_forms(started(program, code, inputs, options)[1])
    if (without or why) and not compiled.regions:
        raise RequestError(idle(compiled))
    if without:
        rows, cuts = ablated(compiled, without)
        times = dict(compiled.clock.seconds)
        return emit_json({"regions": rows, "notes": cuts, "times": times}) if json_ else print_ablated(rows, cuts)
    deadline = Deadline(options.report_s)
    if why is not None:
        with compiled.clock.span("steps"):
            found = chains(compiled.regions, *why, deadline)
        times, cuts = dict(compiled.clock.seconds), cut_short(compiled)
        return emit_json({"regions": found, "notes": cuts, "times": times}) if json_ else print_chains(found, cuts)
    told = report(compiled, bool(json_ or html), deadline.share(1 / 3) if html else deadline)
    if html is not None:
        write(html, page(compiled, told, deadline))
    if json_:
        return emit_json(told | {"times": dict(compiled.clock.seconds)})
    for part in told.get("regions", [told]):
        print_forms(part)
    for note in [idle(compiled)] if not compiled.regions else told["notes"]:
        typer.echo(note)
    return None


def print_forms(part: dict[str, Any]) -> None:
    """The forms of a region as a table, then what each stores and sweeps and the laws behind it, each list once."""
    graph = part["egraph"]
    stops = ", ".join(stopped((p["name"], p["stop"]) for p in graph["phases"]))
    title = f"{graph['classes']} classes, {graph['nodes']} nodes, {stops or 'saturated'}"
    rows = [form_cells(f) for f in part["forms"]]
    header = [name for name in rows[0] if any(row[name] for row in rows)]
    show(title, header, [[row[name] for name in header] for row in rows])
    for f in part["forms"]:
        typer.echo(f"{f['id']}: " + "; ".join(f["signature"]))
    forms: dict[tuple[str, ...], list[str]] = {}
    for f in part["forms"]:
        forms.setdefault(tuple(f["laws"]), []).append(str(f["id"]))
    for laws, ids in forms.items():
        typer.echo(f"laws of {', '.join(ids)}: {', '.join(laws) or 'none'}")
    print_left_out(part)
    if best := part.get("default"):
        missing = ", ".join(f"{x['law']} ({x['class']})" for x in best["missing"])
        typer.echo(f"with --numerics default {best['cost_us']:.2f} us: " + "; ".join(best["signature"]))
        typer.echo(f"strict lacks {missing}")


def print_left_out(part: dict[str, Any]) -> None:
    """What a report lacks, and why."""
    for row in part["left_out"]:
        typer.echo(said(row))


def form_cells(f: dict[str, Any]) -> dict[str, str]:
    """A row of the table of forms."""
    swept: Counter[str] = Counter()
    for kernel in f["kernels"]:
        swept.update(kernel["sweeps"])
    marks = [name for name in ("chosen", "default") if f[name]]
    return {
        "form": " ".join([str(f["id"]), *marks]),
        "cost us": f"{f['cost_us']:.2f}",
        "measured us": "" if f["measured_us"] is None else f"{f['measured_us']:.2f}",
        "kernels": str(len(f["kernels"])),
        "sweeps": " ".join(f"{a}:{n}" for a, n in sorted(swept.items())),
        "states": str(sum(kernel["states"] for kernel in f["kernels"])),
        "flops": f"{f['flops']:.3g}",
        "bytes": f"{f['bytes']:.3g}",
        "peak bytes": f"{f['peak_bytes']:.3g}",
        "cut short": " and ".join([*f["stop"], *gap_words(f["gap"])]),
        "laws": str(len(f["laws"])),
        "class": f["class"],
        "max rel err": "" if f["max_rel_err"] is None else f"{f['max_rel_err']:.1e}",
    }


def gap_words(gap: float | None) -> list[str]:
    """How far from the best a form may be, in words; nothing where it is the best."""
    if gap is None:
        return ["the gap is not known"]
    return [f"{gap:.0%} may be left"] if gap else []


def check_laws(names: list[str]) -> None:
    """Refuse the name of a law that is none, with one that is near."""
    for name in names:
        if name not in LAWS:
            near = "".join(f"did you mean {x}? " for x in get_close_matches(name, LAWS, 1))
            raise RequestError(f"no law is named {cut(name) or 'by an empty text'}; {near}eggtile laws lists them")


def ablated(compiled: Compiled, names: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """For every region the best form with all laws, without each of some, and without all; and what budgets cut.

    `note` says what it means where the latter is cheaper; it is null elsewhere.
    """
    sets = [[name] for name in names] + ([names] if len(names) > 1 else [])
    others = [choose_forms(restarted(compiled, without=tuple(s), k=1, explain=True)) for s in sets]
    found = []
    for n, region in enumerate(compiled.regions):
        rows = []
        for left_out, other in zip(sets, others, strict=True):
            row = best_row(other.regions[n])
            note = ablation_note(region.chosen.cost_us, row["cost_us"])
            rows.append({"without": left_out, **row, "note": note})
        found.append({"best": best_row(region), "without": rows})
    return found, cut_short(compiled, *others)


def ablation_note(all_us: float, fewer_us: float) -> str | None:
    """What it means where a form is cheaper than the best with all laws, and by how much; None where it is not."""
    if fewer_us >= all_us * (1 - LEAST_SHARE):
        return None
    return (
        f"{1 - fewer_us / all_us:.2%} cheaper than the best form found with all laws: that search is bounded and may pass"
        " over a form, or a law does not hold of values that only all laws show to be equal"
    )


def best_row(region: Region) -> dict[str, Any]:
    """What is chosen in a region, which is what costs the least."""
    f = region.chosen
    return {"cost_us": f.cost_us, "signature": form_signature(f), "laws": list(f.laws)}


def print_ablated(rows: list[dict[str, Any]], cuts: list[str]) -> None:
    """A table for each region."""
    header = ["laws left out", "cost us", "kernels", "laws used"]
    for row in rows:
        cells = [
            [
                ", ".join(best.get("without", [])) or "none",
                f"{best['cost_us']:.2f}",
                "\n".join(best["signature"]),
                "\n".join(best["laws"]) or "none",
            ]
            for best in (row["best"], *row["without"])
        ]
        show("the best form", header, cells)
        for best in row["without"]:
            if best["note"] is not None:
                typer.echo(f"without {', '.join(best['without'])}: {best['note']}")
    for note in cuts:
        typer.echo(note)


FACT_ALONE = "is as it stands; the step is a fact about it that later ones need"


def print_chains(found: list[dict[str, Any]], cuts: list[str]) -> None:
    """The steps of every region: what equals what by which law, and what the law needs."""
    for c in found:
        for end in (c["from"], c["to"]):
            typer.echo(f"form {end['form']}: " + "; ".join(end["signature"]))
        typer.echo(
            f"{len(c['steps'])} steps, each replayed on terms; {c['shared_steps']} more lead to both forms"
            + (f"; {c['not_replayed']} matches of laws could not be replayed" if c["not_replayed"] else "")
        )
        print_left_out(c)
        if c["difference"] is not None:
            typer.echo(c["difference"])
        for line in c["where"]:
            typer.echo(f"     {line}")
        for n, s in enumerate(c["steps"], 1):
            error = "" if s["error"] is None else f", by numbers to {s['error']:.0e}".replace("0e+00", "0")
            error = error if s["holds"] else ", BUT NOT BY NUMBERS"
            typer.echo(f"{n:3}. {'undo ' if s['undo'] else ''}{s['law']} ({s['class']}{error})")
            same = s["before"] == s["after"]
            typer.echo(f"       {s['before']}\n    {FACT_ALONE if same else '=  ' + s['after']}")
            for fact in s["given"]:
                typer.echo(f"       as {fact}")
        if any(s["law"] == BY_DEFINITION for s in c["steps"]):
            typer.echo("A step by definition is no law: it says what a fold over two axes or a prefix of a sum is.")
        if c["steps"]:
            typer.echo("Both sides of a step are equal, so either may stand for the other where a form reads it.")
        if any("new[" in s["after"] for s in c["steps"]):
            typer.echo(
                "old[j](x) is x over the positions of j before a step, new[j](x) with that step: a sweep carries x "
                "where new[j](x) is\nsaid in terms of old values. ratio[j](x) is new[j](x) / old[j](x), delta[j](x) "
                "is new[j](x) - old[j](x)."
            )
    for note in cuts:
        typer.echo(note)


# ---- dumps


@app.command()
def dump(
    program: Program = None,
    code: Code = None,
    inputs: Inputs = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="json and html hold the graph and the forms; egg the graph and its facts, for egglog to read; "
            "text, dot and svg classes and nodes, svg the first 400 classes.",
            show_default="as FILE is named; json without a name",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="The file to write (standard output if absent).")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many distinct forms json and html hold.")] = LISTED,
    region: Annotated[
        int | None, typer.Option(min=0, help="Which graph, where the program has several and the format holds one.")
    ] = None,
    numerics: Numerics = "default",
    target: Target = "sm_90a",
    store: Store = None,
    budget: BudgetText = None,
) -> None:
    """Write the saturated e-graph, in json and html with the forms. Equal graphs give equal text, but for times."""
    suffix = output.suffix[1:] if output is not None else ""
    if format_ is None and suffix not in ("", *FORMATS):
        raise RequestError(f"{output} names no format; say --format, which is one of {', '.join(FORMATS)}")
    format_ = format_ or suffix or "json"
    if format_ not in FORMATS:
        raise RequestError(f"unknown format {cut(format_)}; formats are {', '.join(FORMATS)}")
    if suffix != format_ and suffix in FORMATS:
        raise RequestError(f"{output} is named like {suffix}, but the format is {format_}; say --format {suffix}")
    options = options_of(numerics, target, k=k, explain=True, evidence=stores.opened(store), **budget_of(budget))
    compiled = choose_forms(started(program, code, inputs, options)[1])
    text = written(compiled, format_, region)
    if lacks := idle(compiled):
        typer.echo(lacks, err=True)
    if output is None:
        return typer.echo(text)
    write(output, text + "\n")
    return None


@app.command()
def diff(a: Dump, b: Dump, json_: Json = False) -> None:
    """Say which classes, nodes, forms and laws only one of two dumps holds; classes and nodes are told by their terms."""
    found = differences(loaded(a), loaded(b))
    if json_:
        return emit_json(found)
    for what, sides in found.items():
        typer.echo(f"{what}: {len(sides['only_a'])} only in {a}, {len(sides['only_b'])} only in {b}")
        for sign, key in (("-", "only_a"), ("+", "only_b")):
            for text in sides[key]:
                typer.echo(f"{sign} {text}")
    return None


@app.command()
def query(
    a: Dump, text: Annotated[str, typer.Argument(metavar="QUERY", help=answers.__doc__)], json_: Json = False
) -> None:
    """Find forms or classes of a dump, like: forms where sweeps(j) == 1 and reads(x) <= 2."""
    found = answers(loaded(a), text)
    if json_:
        return emit_json(found)
    if found:
        header = [name for name in found[0] if name != "laws"]
        show(f"{len(found)} found", header, [[cell(row[name]) for name in header] for row in found])
    else:
        typer.echo("none found")
    return None


def cell(value: object) -> str:
    """A value in a table, several below each other."""
    if isinstance(value, float):
        return f"{value:.2f}"
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


# ---- laws


@app.command()
def laws(
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None, json_: Json = False
) -> None:
    """List the laws of the e-graph, or show one with its two sides or its rules as egglog runs them."""
    check_laws([] if name is None else [name])
    found = [law_row(x) for x in LAWS.values() if name in (None, x.name)]
    if json_:
        return emit_json(found)
    if name is None:
        header = ["law", "family", "class", "statement"]
        return show(f"{len(found)} laws", header, [[row[key] for key in header] for row in found])
    (row,) = found
    typer.echo(f"{row['law']} ({row['family']}, {row['class']})\n{row['statement']}")
    for left, right in row["sides"]:
        typer.echo(f"\n  {left}\n= {right}")
    for condition in row["given"]:
        typer.echo(f"where {condition}")
    for body, actions in row["rules"]:
        typer.echo("\nrule\n" + "\n".join(f"   {line}" for line in body))
        typer.echo("\n".join(f"=> {line}" for line in actions))
    return None


def law_row(law: Law) -> dict[str, Any]:
    """A law as data: its sides as terms over variables where it has them, and its rules."""
    return {
        "law": law.name,
        "family": law.family,
        "class": law.class_,
        "statement": law.sentence,
        "sides": [[show_term(t) for t in sides] for sides in law.sides],
        "given": [f"{c.name}({', '.join(c.variables)})" for c in law.given],
        "rules": [[list(map(spelled, parsed(text))) for text in rule] for rule in law.rules],
    }
