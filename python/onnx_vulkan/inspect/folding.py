"""Folds values that differ in one number of their names: ``past_key_values.#.key``, # from 0 to 25."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["FEWEST", "Folded", "fold", "numbers_text"]

FEWEST = 3
"""So many names at least are written as one."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Several names as one, in which ``#`` stands for each of ``numbers``, or one name as it is (no ``numbers``).

    ``facts`` is what they have in common, with ``#`` where it has the number too; ``members`` are the names.
    """

    name: str
    numbers: tuple[int, ...]
    facts: tuple[str, ...]
    members: tuple[str, ...]


def numbers_text(numbers: Sequence[int]) -> str:
    """``# from 0 to 25``, or ``# in 1, 5, 9``."""
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"# from {numbers[0]} to {numbers[-1]}"
    return f"# in {', '.join(map(str, numbers))}"


def fold(values: Iterable[tuple[str, Sequence[str]]]) -> list[Folded]:
    """Fold ``(name, facts)``, in the order of each first name. Names fold whose facts are equal, but for the number itself.

    A name with several numbers folds over the one that brings the most together.
    """
    given = [(name, tuple(facts)) for name, facts in values]
    groups: dict[tuple[str, tuple[str, ...]], dict[int, str]] = defaultdict(dict)
    patterns: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for name, facts in given:
        patterns[name] = []
        for found in re.finditer(r"\d+", name):
            if str(int(found[0])) != found[0]:
                continue  # 007 would not be made again from 7
            pattern = name[: found.start()] + "#" + name[found.end() :]
            # A dim without a name of its own is called after the value: past.0.key.2
            key = (pattern, tuple(fact.replace(name, pattern) for fact in facts))
            groups[key][int(found[0])] = name
            patterns[name].append(key)
    done: set[str] = set()
    out: list[Folded] = []
    for name, facts in given:
        if name in done:
            continue
        best = max(patterns[name], key=lambda key: sum(m not in done for m in groups[key].values()), default=None)
        members = {n: m for n, m in sorted(groups[best].items()) if m not in done} if best is not None else {}
        if best is None or len(members) < FEWEST:
            done.add(name)
            out.append(Folded(name, (), facts, (name,)))
            continue
        done.update(members.values())
        out.append(Folded(best[0], tuple(members), best[1], tuple(members.values())))
    return out
