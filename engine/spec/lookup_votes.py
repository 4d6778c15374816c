# SPDX-License-Identifier: MIT OR Apache-2.0
"""From continuations with votes to a draft tree: shares, path probabilities, the line most of them follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from engine.spec.tree import ANCHOR, DraftTree

Line = tuple[int, ...]
Vote = tuple[Line, float]
_Branch = tuple[float, int, list[Vote]]  # mass, token, votes through it
# -score, serial, parent, token, level, mass, votes
_Open = tuple[float, int, int, int, int, float, list[Vote]]
Votes = Mapping[Line, float]


@dataclass(frozen=True, slots=True)
class Decay:
    """How the probability of a path falls from a node to its child.

    p(child) = p(parent) * mass(child) / (mass(parent) + alpha), or, where a continuation rate `rho` is known,
    p(child) = p(parent) * mass(child) / mass(parent) * rho. The mass of a node is the sum of the votes of all
    continuations through it; rho is a probability.
    """

    alpha: float
    rho: float | None = None

    def of(self, mass: float, parent_mass: float) -> float:
        """The factor from a node with `parent_mass` to a child with `mass`."""
        if self.rho is None:
            return mass / (parent_mass + self.alpha)
        return mass / parent_mass * self.rho


def count_votes(continuations: Iterable[tuple[Line, float]]) -> dict[Line, float]:
    """The votes of each distinct continuation, in the order of their first; empty ones have none."""
    votes: dict[Line, float] = {}
    for line, weight in continuations:
        if line:
            votes[line] = votes.get(line, 0.0) + weight
    return votes


def top_line(votes: Votes) -> tuple[Line, int]:
    """(the line the most votes follow at every step, for how many tokens at least half of all follow it).

    At a tie the branch that was entered first is taken.
    """
    if len(votes) == 1:
        (line,) = votes
        return line, len(line)
    lines = list(votes.items())
    half = sum(votes.values()) / 2
    top: list[int] = []
    held = 0
    while lines:
        depth = len(top)
        if len(lines) == 1:
            line, weight = lines[0]
            top += line[depth:]
            if weight >= half and held == depth:
                held = len(top)
            break
        masses: dict[int, float] = {}
        for line, weight in lines:
            masses[line[depth]] = masses.get(line[depth], 0.0) + weight
        best = max(masses, key=masses.__getitem__)
        top.append(best)
        if masses[best] >= half and held == depth:
            held = depth + 1
        lines = [entry for entry in lines if entry[0][depth] == best and len(entry[0]) > depth + 1]
    return tuple(top), held


def vote_chain(anchor: int, votes: Votes, line: Line, decay: Decay, source: str) -> DraftTree:
    """`line` behind the anchor as a chain, scored by its votes."""
    scores = []
    score = 1.0
    lines = list(votes.items())
    parent_mass = sum(votes.values())
    for depth, token in enumerate(line):
        if len(lines) > 1:
            lines = [each for each in lines if len(each[0]) > depth and each[0][depth] == token]
            mass = sum(weight for _, weight in lines)
        else:
            mass = lines[0][1]
        score *= decay.of(mass, parent_mass)
        parent_mass = mass
        scores.append(score)
    return DraftTree.chain((anchor, *line), scores, source)


def vote_tree(
    anchor: int,
    votes: Votes,
    decay: Decay,
    source: str,
    *,
    nodes: int,
    depth: int,
    top_k: int,
) -> DraftTree:
    """The `nodes` likeliest nodes besides the anchor, at most `depth` deep and `top_k` children to a node.

    A child is never likelier than its parent, so that taking the likeliest open node again and again is the
    whole tree of continuations, cut to the budget by score.
    """
    if len(votes) == 1:
        (line,) = votes
        return vote_chain(anchor, votes, line[: min(nodes, depth)], decay, source)
    # Children are opened and so taken in descending score: no list of children needs to be sorted.
    tokens, scores, children = [anchor], [1.0], [[]]
    opened: list[_Open] = []
    parent, level, score = 0, 0, 1.0
    mass, members = sum(votes.values()), list(votes.items())
    serial = 0
    while True:
        if level < depth:
            for part, token, group in _branches(members, level, top_k):
                serial += 1
                likely = score * decay.of(part, mass)
                heappush(opened, (-likely, serial, parent, token, level + 1, part, group))
        if not opened or len(tokens) > nodes:
            return _in_order(tokens, scores, children, source)
        minus, _, above, token, level, mass, members = heappop(opened)
        parent, score = len(tokens), -minus
        children[above].append(parent)
        tokens.append(token)
        scores.append(score)
        children.append([])


def _branches(members: list[Vote], level: int, top_k: int) -> Iterable[_Branch]:
    """(mass, token, its votes) of the tokens that come next, at most `top_k`, heaviest first."""
    if len(members) == 1:
        line, weight = members[0]
        return ((weight, line[level], members),) if len(line) > level else ()
    groups: dict[int, list[Vote]] = {}
    masses: dict[int, float] = {}
    for vote in members:
        line = vote[0]
        if len(line) > level:
            token = line[level]
            if token in groups:
                masses[token] += vote[1]
                groups[token].append(vote)
            else:
                masses[token] = vote[1]
                groups[token] = [vote]
    best = sorted(masses, key=masses.__getitem__, reverse=True)[:top_k]
    return [(masses[token], token, groups[token]) for token in best]


def _in_order(
    tokens: list[int], scores: list[float], children: list[list[int]], source: str
) -> DraftTree:
    """The nodes in depth-first pre-order."""
    order: list[int] = []
    parents: list[int] = []
    waiting = [(0, -1)]
    while waiting:
        node, parent = waiting.pop()
        at = len(order)
        order.append(node)
        parents.append(parent)
        below = children[node]
        if len(below) == 1:
            waiting.append((below[0], at))
        elif below:
            waiting.extend([(child, at) for child in reversed(below)])
    return DraftTree(
        tuple([tokens[node] for node in order]),
        tuple(parents),
        tuple([scores[node] for node in order]),
        (ANCHOR,) + (source,) * (len(order) - 1),
    )
