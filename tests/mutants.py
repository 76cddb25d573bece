"""Wrong verifiers, most of them seen in public engines. The exactness suite must reject every one of them.

Each entry: rule it pretends to be, and a function with the signature of ``specrs.reference`` rules.
"""

from specrs.reference.rules import (
    block,
    chain,
    children,
    draw,
    fixed,
    normalised,
    positive_part,
    residual,
    siblings,
    spectr,
)

MUTANTS = {}


def mutant(rule):
    def register(function):
        MUTANTS[function.__name__] = (rule, function)
        return function

    return register


def chain_like(accepts, rejected=residual, bonus=None):
    """Build a chain verifier from its acceptance test and its law after a rejection."""

    def verify(target_probs, draft_probs, tokens, parents, accept, emit):
        for node, token in enumerate(tokens):
            target, draft = target_probs[node], draft_probs[node]
            if not accepts(accept[node], draft[token], target[token], target, token):
                return tuple(range(node)), draw(rejected(target, draft), emit[node])
        law = target_probs[len(tokens)] if bonus is None else bonus(target_probs, draft_probs)
        return tuple(range(len(tokens))), draw(law, emit[len(tokens)])

    return verify


def plain(coin, q, p, *_):
    return coin * q < p


def register_chain(name, *parts, **named):
    MUTANTS[name] = ("chain", chain_like(*parts, **named))


# vLLM, transformers: `<=` lets a token through that the target excludes when the coin is 0.
register_chain("chain_accepts_on_equality", lambda coin, q, p, *_: coin * q <= p)
# The most common simplification: sample the target again instead of the residual.
register_chain("chain_without_residual", plain, lambda p, q: p)
register_chain(
    "chain_residual_of_absolute_difference", plain, lambda p, q: [abs(a - b) for a, b in zip(p, q, strict=True)]
)
register_chain("chain_residual_from_the_draft", plain, lambda p, q: residual(q, p))
register_chain("chain_ratio_upside_down", lambda coin, q, p, *_: coin * p < q)
register_chain("chain_with_a_large_epsilon", lambda coin, q, p, *_: coin * (q + 1e-3) < p)
register_chain("chain_with_lenience", lambda coin, q, p, *_: coin * q * 0.5 < p)
register_chain("chain_accepts_everything", lambda *_: True)
# SSD on a cache miss: greedy acceptance with a sampled recovery.
register_chain("chain_greedy_acceptance", lambda coin, q, p, target, token: token == target.index(max(target)))
register_chain("chain_bonus_from_the_draft", plain, bonus=lambda p, q: q[-1] if q else p[-1])
register_chain("chain_bonus_from_the_row_before", plain, bonus=lambda p, q: p[-2] if len(p) > 1 else p[-1])
# One-hot draft probability claimed for a sampled draft, and the other way round (transformers #47932, DeepSpec #31).
register_chain("chain_accepts_with_target_probability", lambda coin, q, p, *_: coin < p)
# TensorRT-LLM: 0/0 and other NaN ratios accept; with a floor on the denominator instead.
register_chain("chain_half_precision_ratio", lambda coin, q, p, *_: coin < round(p / q, 1))


@mutant("chain")
def chain_one_coin_for_both(target_probs, draft_probs, tokens, parents, accept, emit):
    """SGLang #7207: the coin that rejected also draws."""
    return chain(target_probs, draft_probs, tokens, parents, accept, [*accept[: len(tokens)], emit[-1]])


@mutant("chain")
def chain_stale_draft_law(target_probs, draft_probs, tokens, parents, accept, emit):
    """Uses the first node's law at every node."""
    return chain(target_probs, [draft_probs[0]] * len(tokens), tokens, parents, accept, emit)


@mutant("chain")
def chain_counts_acceptances_after_a_rejection(target_probs, draft_probs, tokens, parents, accept, emit):
    """``accepted.sum()`` instead of the length of the accepted prefix."""
    count = len(tokens)
    stands = sum(accept[n] * draft_probs[n][tokens[n]] < target_probs[n][tokens[n]] for n in range(count))
    law = target_probs[count] if stands == count else residual(target_probs[stands], draft_probs[stands])
    return tuple(range(stands)), draw(law, emit[stands])


@mutant("chain")
def chain_residual_of_the_wrong_row(target_probs, draft_probs, tokens, parents, accept, emit):
    path, token = chain(target_probs, draft_probs, tokens, parents, accept, emit)
    if len(path) < len(tokens):
        token = draw(residual(target_probs[len(path) + 1], draft_probs[len(path)]), emit[len(path)])
    return path, token


@mutant("chain")
def chain_rejected_token_may_return(target_probs, draft_probs, tokens, parents, accept, emit):
    """A residual that subtracts nothing at the rejected token."""
    path, token = chain(target_probs, draft_probs, tokens, parents, accept, emit)
    if len(path) < len(tokens):
        node = len(path)
        rest = positive_part(target_probs[node], draft_probs[node])
        rest[tokens[node]] = target_probs[node][tokens[node]]
        token = draw(rest if sum(rest) else target_probs[node], emit[node])
    return path, token


def joint_ratios(target_probs, draft_probs, tokens, cap=True):
    joint = [1.0]
    for node, token in enumerate(tokens):
        ratio = joint[-1] * target_probs[node][token] / draft_probs[node][token]
        joint.append(min(1.0, ratio) if cap else ratio)
    return joint


def block_like(bound, rest, first_failure=False, cap=True):
    """Build a block verifier from its bound on the coin and its law behind the standing prefix."""

    def verify(target_probs, draft_probs, tokens, parents, accept, emit):
        count, joint, standing = len(tokens), joint_ratios(target_probs, draft_probs, tokens, cap), 0
        for length in range(1, count + 1):
            if length == count:
                stands = accept[length - 1] < joint[length]
            else:
                s = sum(positive_part([joint[length] * p for p in target_probs[length]], draft_probs[length]))
                stands = accept[length - 1] < bound(s, joint[length])
            if stands:
                standing = length
            elif first_failure:
                break
        if standing == count:
            return tuple(range(count)), draw(target_probs[count], emit[count])
        law = rest(joint[standing], target_probs[standing], draft_probs[standing])
        return tuple(range(standing)), draw(law if sum(law) else target_probs[standing], emit[standing])

    return verify


def right_bound(s, c):
    return s / (s + 1 - c) if s + 1 - c > 0 else 1.0


def right_rest(c, target, draft):
    return positive_part([c * p for p in target], draft)


MUTANTS |= {
    # vLLM-ascend #7807: the option called block verification used the token-wise test or the token-wise residual.
    "block_with_tokenwise_residual": ("block", block_like(right_bound, lambda c, p, q: positive_part(p, q))),
    "block_stops_at_the_first_failure": ("block", block_like(right_bound, right_rest, first_failure=True)),
    "block_bound_is_the_joint_ratio": ("block", block_like(lambda s, c: c, right_rest)),
    "block_bound_is_the_residual_mass": ("block", block_like(lambda s, c: s, right_rest)),
    "block_ratio_not_capped": ("block", block_like(right_bound, right_rest, cap=False)),
    "block_draws_from_the_target": ("block", block_like(right_bound, lambda c, p, q: p)),
}


@mutant("block")
def block_one_coin_for_all_lengths(target_probs, draft_probs, tokens, parents, accept, emit):
    return block(target_probs, draft_probs, tokens, parents, [accept[0]] * len(accept), emit)


def siblings_like(next_target, next_draft):
    """Build a sibling verifier from what a rejection does to the two laws."""

    def verify(target_probs, draft_probs, tokens, parents, accept, emit):
        path, node = [], -1
        while True:
            target, first = list(target_probs[node + 1]), list(target_probs[node + 1])
            accepted, draft = None, None
            for child in children(parents, node):
                draft = list(draft_probs[child]) if draft is None else draft
                token = tokens[child]
                if accept[child + 1] * draft[token] < target[token]:
                    accepted = child
                    break
                target, draft = next_target(target, draft), next_draft(draft, token)
            if accepted is None:
                law = residual(first, draft_probs[children(parents, node)[0]]) if target is first else target
                return tuple(path), draw(law, emit[node + 1])
            node = accepted
            path.append(node)

    return verify


def unchanged(draft, token):
    return draft


def removed(draft, token):
    return [0.0 if index == token else prob for index, prob in enumerate(draft)]


def removed_normalised(draft, token):
    rest = removed(draft, token)
    return normalised(rest) if sum(rest) else rest


def trt_siblings(target_probs, draft_probs, tokens, parents, accept, emit):
    """TensorRT-LLM: every sibling against the same target and draft law, the residual taken once."""
    path, node = [], -1
    while True:
        candidates = children(parents, node)
        target = target_probs[node + 1]
        for child in candidates:
            if accept[child + 1] * draft_probs[child][tokens[child]] < target[tokens[child]]:
                node = child
                path.append(node)
                break
        else:
            law = residual(target, draft_probs[candidates[0]]) if candidates else target
            return tuple(path), draw(law, emit[node + 1])


MUTANTS |= {
    "siblings_against_unchanged_laws": ("without_replacement", trt_siblings),
    "independent_siblings_against_unchanged_laws": ("specinfer", trt_siblings),
    "without_replacement_tested_against_the_first_law": ("without_replacement", siblings_like(residual, unchanged)),
    "without_replacement_not_renormalised": ("without_replacement", siblings_like(residual, removed)),
    "without_replacement_target_not_updated": (
        "without_replacement",
        siblings_like(lambda p, q: p, removed_normalised),
    ),
    "independent_siblings_taken_for_without_replacement": (
        "specinfer",
        siblings_like(residual, removed_normalised),
    ),
}


@mutant("specinfer")
def siblings_share_a_coin(target_probs, draft_probs, tokens, parents, accept, emit):
    """Every sibling is tested with the coin of the first."""
    shared = list(accept)
    for node, parent in enumerate(parents):
        shared[node + 1] = accept[children(parents, parent)[0] + 1]
    return siblings(target_probs, draft_probs, tokens, parents, shared, emit, unchanged)


@mutant("greedy_or_fixed")
def fixed_cumulative_counts_duplicates(target_probs, draft_probs, tokens, parents, accept, emit):
    """SGLang's running sum over children: a duplicate is counted twice."""
    path, node = [], -1
    while True:
        target, below, taken = list(target_probs[node + 1]), 0.0, None
        for child in children(parents, node):
            below += target_probs[node + 1][tokens[child]]
            target[tokens[child]] = 0.0
            if emit[node + 1] < below:
                taken = child
                break
        if taken is None:
            rest = (emit[node + 1] - below) / (1 - below) if below < 1 else 0.0
            return tuple(path), draw(target if sum(target) else target_probs[node + 1], rest)
        node = taken
        path.append(node)


@mutant("greedy_or_fixed")
def fixed_redraws_after_a_miss(target_probs, draft_probs, tokens, parents, accept, emit):
    """Draws once for the test and again, with the child still possible, for the bonus."""
    path, token = fixed(target_probs, draft_probs, tokens, parents, accept, emit)
    node = path[-1] if path else -1
    if children(parents, node):
        token = draw(target_probs[node + 1], (emit[node + 1] * 7) % 1)
    return path, token


@mutant("greedy_or_fixed")
def fixed_takes_the_first_child_as_drawn(target_probs, draft_probs, tokens, parents, accept, emit):
    """N-gram drafts always accepted at temperature > 0 (openvino.genai)."""
    path, node = [], -1
    while children(parents, node):
        node = children(parents, node)[0]
        path.append(node)
    return tuple(path), draw(target_probs[node + 1], emit[node + 1])


@mutant("greedy_or_fixed")
def fixed_turns_greedy(target_probs, draft_probs, tokens, parents, accept, emit):
    """Accept-only-if-argmax at temperature > 0 (mlx-lm)."""
    greedy = [[float(index == row.index(max(row))) for index in range(len(row))] for row in target_probs]
    path, _ = fixed(greedy, draft_probs, tokens, parents, accept, emit)
    node = path[-1] if path else -1
    return path, draw(target_probs[node + 1], emit[node + 1])


@mutant("greedy_or_fixed")
def fixed_descends_by_position(target_probs, draft_probs, tokens, parents, accept, emit):
    """Reads the row of the slot index instead of the node's own row."""
    shifted = [target_probs[0], *target_probs[2:], target_probs[-1]] if len(target_probs) > 1 else target_probs
    return fixed(shifted, draft_probs, tokens, parents, accept, emit)


@mutant("greedy_or_fixed")
def fixed_coin_zero_takes_what_has_no_mass(target_probs, draft_probs, tokens, parents, accept, emit):
    """SGLang #35771: ``coin <= cumulative`` accepts probability 0 at coin 0."""

    def careless(weights, coin):
        below = 0.0
        for index, weight in enumerate(weights):
            below += weight
            if coin <= below:
                return index
        return len(weights) - 1

    path, node = [], -1
    while True:
        token = careless(target_probs[node + 1], emit[node + 1])
        matching = [child for child in children(parents, node) if tokens[child] == token]
        if not matching:
            return tuple(path), token
        node = matching[0]
        path.append(node)


@mutant("greedy_or_fixed")
def fixed_walks_siblings_as_descendants(target_probs, draft_probs, tokens, parents, accept, emit):
    """Treats the flat node list as a chain."""
    chained = list(range(-1, len(tokens) - 1))
    return fixed(target_probs, draft_probs, tokens, chained, accept, emit)


@mutant("spectr")
def spectr_without_scaling(target_probs, draft_probs, tokens, parents, accept, emit):
    return trt_siblings(target_probs, draft_probs, tokens, parents, accept, emit)


@mutant("spectr")
def spectr_rest_is_the_target(target_probs, draft_probs, tokens, parents, accept, emit):
    path, token = spectr(target_probs, draft_probs, tokens, parents, accept, emit)
    node = path[-1] if path else -1
    return path, draw(target_probs[node + 1], emit[node + 1]) if children(parents, node) else token


@mutant("spectr")
def spectr_rest_is_the_plain_residual(target_probs, draft_probs, tokens, parents, accept, emit):
    path, token = spectr(target_probs, draft_probs, tokens, parents, accept, emit)
    node = path[-1] if path else -1
    candidates = children(parents, node)
    if candidates:
        token = draw(residual(target_probs[node + 1], draft_probs[candidates[0]]), emit[node + 1])
    return path, token
