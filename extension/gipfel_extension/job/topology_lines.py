"""The topology of a job as lines of text."""

import textwrap
from collections.abc import Iterable, Sequence

from gipfel_cluster.model import BREAKS
from gipfel_cluster.scheduler.notation import fold_hostlist

from ..diagnosis.verdict import named
from .topology import GpuBox, JobTopology, LinkLine, NodeBox

_KINDS = {"nvlink": "NVLink", "nvswitch": "NVSwitch", "c2c": "C2C", "xgmi": "XGMI"}
_NETWORKS = {"slingshot": "Slingshot", "infiniband": "InfiniBand", "roce": "RoCE", "ethernet": "Ethernet"}
_MOST_LEAVES = 200


def topology_lines(job: JobTopology, width: int = 80) -> list[str]:
    """Return lines on switches and their nodes, each kind of node, the selected ranks, and the scatter.

    Parameters
    ----------
    width
        Longest line, in characters.
    """
    found = [f"{job.run}: {_counts(job)}", ""]
    found += _switches(job, width)
    for nodes in _alike(job.nodes):
        found += ["", *_hardware(nodes, width)]
    ranks = _ranks(job, width)
    found += ["", *ranks] if ranks else []
    if job.scatter.sentence:
        found += ["", *textwrap.wrap(job.scatter.sentence, width)]
    for problem in job.problems:
        found += ["", *textwrap.wrap(f"{problem.text} {problem.fix}".strip(), width)]
    return [BREAKS.sub(" ", line) for line in found]


def _counts(job: JobTopology) -> str:
    gpus = sum(len(node.gpus) for node in job.nodes)
    nics = sum(len(node.nics) for node in job.nodes)
    parts = ((len(job.nodes), "node"), (gpus, "GPU"), (nics, "NIC"), (len(job.ranks), "rank"))
    return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in parts)


def _switches(job: JobTopology, width: int) -> list[str]:
    lines = textwrap.wrap(f"Switches: {job.source}", width)
    by_path: dict[tuple[str, ...], list[str]] = {}
    for node in job.nodes:
        if node.switches:
            by_path.setdefault(node.switches, []).append(node.node)
    drawn: set[tuple[str, ...]] = set()
    for path, nodes in sorted(by_path.items())[:_MOST_LEAVES]:
        for depth, name in enumerate(path):
            if path[: depth + 1] not in drawn:
                drawn.add(path[: depth + 1])
                lines.append(f"{'  ' * (depth + 1)}{name}")
        indent = "  " * (len(path) + 1)
        lines += textwrap.wrap(
            fold_hostlist(nodes).replace(",", ", "), width, initial_indent=indent, subsequent_indent=indent
        )
    if len(by_path) > _MOST_LEAVES:
        lines.append(f"  and {len(by_path) - _MOST_LEAVES} more")
    return lines


def _alike(nodes: Iterable[NodeBox]) -> list[list[NodeBox]]:
    """Return nodes in groups of equal hardware."""
    groups: dict[tuple[object, ...], list[NodeBox]] = {}
    for node in nodes:
        places = {gpu.uuid: place for place, gpu in enumerate(node.gpus)}
        key = (
            node.stored,
            node.numa,
            tuple((gpu.label, gpu.name, gpu.numa, gpu.nic.partition("@")[0]) for gpu in node.gpus),
            tuple((nic.name, nic.kind, nic.numa) for nic in node.nics),
            tuple((places.get(each.first), places.get(each.second), each.kind) for each in node.links),
        )
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def _hardware(nodes: Sequence[NodeBox], width: int) -> list[str]:
    first = nodes[0]
    names = fold_hostlist([node.node for node in nodes]).replace(",", ", ")
    lines = textwrap.wrap(f"Each of {names}" if len(nodes) > 1 else names, width)
    if not first.stored:
        lines.append("  hardware unknown: no recorder stored it")
    numbers = [numa.number for numa in first.numa]
    for numa in first.numa:
        gpus = [gpu for gpu in first.gpus if gpu.numa == numa.number]
        nics = [nic.name for nic in first.nics if nic.numa == numa.number]
        text = f"NUMA {numa.number}: cores {numa.cores}"
        text += "".join(f"; {part}" for part in (_gpu_text(gpus), ", ".join(nics)) if part)
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    rest = _gpu_text([gpu for gpu in first.gpus if gpu.numa not in numbers])
    nics = [nic.name for nic in first.nics if nic.numa not in numbers]
    if rest or nics:
        text = "; ".join(part for part in (rest, ", ".join(nics)) if part)
        lines += textwrap.wrap(
            f"NUMA node unknown: {text}", width, initial_indent="  ", subsequent_indent="    "
        )
    kinds = sorted({_NETWORKS[nic.kind] for nic in first.nics})
    if kinds:
        lines.append(f"  network: {', '.join(kinds)}")
    for text in _link_texts(first):
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    return lines


def _gpu_text(gpus: Sequence[GpuBox]) -> str:
    if not gpus:
        return ""
    names = sorted({gpu.name for gpu in gpus if gpu.name})
    nearest = [f"{gpu.label} by {gpu.nic.partition('@')[0]}" if gpu.nic else gpu.label for gpu in gpus]
    return ", ".join(nearest) + (f" ({', '.join(names)})" if names else "")


def _link_texts(node: NodeBox) -> list[str]:
    """Return a line per kind and number of links, such as ``NVLink, 6 each: all 4 GPUs with each other``."""
    labels = {gpu.uuid: gpu.label for gpu in node.gpus}
    groups: dict[tuple[str, int | None], list[LinkLine]] = {}
    for link in node.links:
        groups.setdefault((link.kind, link.count), []).append(link)
    found = []
    for (kind, count), links in groups.items():
        times = "" if count is None else f", {count} each"
        ends = {end for link in links for end in (link.first, link.second) if end in labels}
        everywhere = len(ends) == len(labels)
        if kind == "c2c":
            text = ", ".join(f"{_end(link, labels)} to {_numa(link)}" for link in links)
        elif kind == "nvswitch":
            text = f"{'all' if everywhere else len(ends)} GPUs to the switches of the node"
        elif everywhere and len(links) == len(ends) * (len(ends) - 1) // 2:
            text = f"all {len(ends)} GPUs with each other"
        else:
            text = ", ".join(f"{labels.get(link.first)}-{labels.get(link.second)}" for link in links)
        found.append(f"{_KINDS[kind]}{times}: {text}")
    return found


def _end(link: LinkLine, labels: dict[str, str]) -> str:
    return labels.get(link.first) or labels.get(link.second, "GPU")


def _numa(link: LinkLine) -> str:
    end = link.second if link.second.startswith("numa:") else link.first
    return f"NUMA {end.removeprefix('numa:')}"


def _ranks(job: JobTopology, width: int) -> list[str]:
    """Return a line per node with the ranks on it, only the selected ones if there is a selection."""
    chosen = None if job.selected is None else set(job.selected)
    by_node: dict[str, list[int]] = {}
    for each in job.ranks:
        if chosen is None or each.rank in chosen:
            by_node.setdefault(each.node or "unknown node", []).append(each.rank)
    if not by_node:
        return [] if chosen is None else ["No rank is selected."]
    head = "Ranks" if chosen is None else f"Selected ranks ({len(chosen)})"
    nics = {each.rank: each.nic.partition("@")[0] for each in job.ranks}
    lines = [f"{head}:"]
    for node, ranks in sorted(by_node.items()):
        used = sorted({nics[rank] for rank in ranks if nics[rank]})
        text = f"{node}: {named(tuple(sorted(ranks)))}" + (f" on {', '.join(used)}" if used else "")
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    return lines
