"""The passes over features and their gradients that norms in training are made of."""

import triton
import triton.language as tl


@triton.jit
def _place(row, column, number, step):
    """Where pixels of the program's group lie."""
    return (tl.program_id(2).to(tl.int64) * number + row)[:, None] * step + column[None, :]


@triton.jit
def _center(features, column, number, channels, step):
    """The first pixel: about it, little is lost where a mean is large."""
    first = tl.program_id(2).to(tl.int64) * number * step
    return tl.load(features + first + column, mask=column < channels, other=0.0).to(tl.float32)


@triton.jit
def _keep(parts, share, shares, column, channels, one, two):
    place = parts + (tl.program_id(2) * shares + share) * 2 * channels + column
    tl.store(place, tl.sum(one, 0), mask=column < channels)
    tl.store(place + channels, tl.sum(two, 0), mask=column < channels)


@triton.jit
def sums(features, parts, number, channels, step, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Sums of features and their squares about the first pixel, of each share."""
    share, shares = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    middle = _center(features, column, number, channels, step)[None, :]
    one = tl.zeros((BLOCK, WIDE), tl.float32)
    two = tl.zeros((BLOCK, WIDE), tl.float32)
    first = share * BLOCK
    while first < number:
        row = first + tl.arange(0, BLOCK)
        inside = (row < number)[:, None] & (column < channels)[None, :]
        value = tl.load(features + _place(row, column, number, step), mask=inside, other=0.0)
        away = tl.where(inside, value.to(tl.float32) - middle, 0.0)
        one += away
        two += away * away
        first += shares * BLOCK
    _keep(parts, share, shares, column, channels, one, two)


@triton.jit
def _summed(parts, channel, channels, shares, MOST: tl.constexpr):
    """Over shares, always in the same order."""
    share = tl.arange(0, MOST)
    place = (tl.program_id(1) * shares + share) * 2 * channels + channel
    one = tl.load(parts + place, mask=share < shares, other=0.0)
    two = tl.load(parts + place + channels, mask=share < shares, other=0.0)
    return tl.sum(one, 0), tl.sum(two, 0)


@triton.jit
def moments_of(
    features,
    parts,
    running_mean,
    running_var,
    batches,
    moments,
    number,
    channels,
    momentum,
    eps,
    shares,
    RUNNING: tl.constexpr,
    MOST: tl.constexpr,
):
    """Means and precisions of channels, and what norms remember of them."""
    channel, group = tl.program_id(0), tl.program_id(1)
    one, two = _summed(parts, channel, channels, shares, MOST)
    count = number * 1.0
    away = one / count
    variance = tl.maximum(two / count - away * away, 0.0)
    place = moments + group * 2 * channels + channel
    tl.store(place, away)
    tl.store(place + channels, 1.0 / tl.sqrt(variance + eps))
    if RUNNING:
        mean = tl.load(features + channel).to(tl.float32) + away
        before = tl.load(running_mean + channel)
        tl.store(running_mean + channel, before + momentum * (mean - before))
        before = tl.load(running_var + channel)
        unbiased = variance * (count / (count - 1.0))
        tl.store(running_var + channel, before + momentum * (unbiased - before))
        tl.store(batches, tl.load(batches) + 1, mask=channel == 0)


@triton.jit
def totals_of(parts, totals, channels, shares, MOST: tl.constexpr):
    """Sums over shares."""
    channel = tl.program_id(0)
    one, two = _summed(parts, channel, channels, shares, MOST)
    place = totals + tl.program_id(1) * 2 * channels + channel
    tl.store(place, one)
    tl.store(place + channels, two)


@triton.jit
def _normed(features, moments, scale, shift, row, column, number, channels, step):
    """Normed features, what the ReLU sees of them, and the factor from features to that."""
    present = column < channels
    inside = (row < number)[:, None] & present[None, :]
    place = moments + tl.program_id(2) * 2 * channels + column
    away = tl.load(place, mask=present, other=0.0)[None, :]
    precision = tl.load(place + channels, mask=present, other=0.0)[None, :]
    a = tl.load(scale + column, mask=present, other=0.0)[None, :]
    b = tl.load(shift + column, mask=present, other=0.0)[None, :]
    value = tl.load(features + _place(row, column, number, step), mask=inside, other=0.0).to(tl.float32)
    normed = (value - _center(features, column, number, channels, step)[None, :] - away) * precision
    return normed, normed * a + b, a * precision


@triton.jit
def apply(
    features,
    moments,
    scale,
    shift,
    result,
    number,
    channels,
    step,
    result_step,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Normed features and the ReLU of them."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    _, answer, _ = _normed(features, moments, scale, shift, row, column, number, channels, step)
    inside = (row < number)[:, None] & (column < channels)[None, :]
    place = result + _place(row, column, number, result_step)
    tl.store(place, tl.maximum(answer, 0.0).to(result.dtype.element_ty), mask=inside)


@triton.jit
def _let_through(incoming, seen, row, column, number, channels, step):
    """The gradients that the ReLU lets through."""
    inside = (row < number)[:, None] & (column < channels)[None, :]
    slope = tl.load(incoming + _place(row, column, number, step), mask=inside, other=0.0).to(tl.float32)
    return tl.where(inside & (seen > 0), slope, 0.0)


@triton.jit
def back_sums(
    features,
    incoming,
    moments,
    scale,
    shift,
    parts,
    number,
    channels,
    step,
    incoming_step,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Sums of the gradients that the ReLU lets through, and of these times normed features, of each share."""
    share, shares = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    one = tl.zeros((BLOCK, WIDE), tl.float32)
    two = tl.zeros((BLOCK, WIDE), tl.float32)
    first = share * BLOCK
    while first < number:
        row = first + tl.arange(0, BLOCK)
        normed, seen, _ = _normed(features, moments, scale, shift, row, column, number, channels, step)
        slope = _let_through(incoming, seen, row, column, number, channels, incoming_step)
        one += slope
        two += slope * normed
        first += shares * BLOCK
    _keep(parts, share, shares, column, channels, one, two)


@triton.jit
def back_apply(
    features,
    incoming,
    moments,
    scale,
    shift,
    totals,
    outgoing,
    number,
    channels,
    step,
    incoming_step,
    outgoing_step,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The gradient by the features."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    present = column < channels
    normed, seen, factor = _normed(features, moments, scale, shift, row, column, number, channels, step)
    slope = _let_through(incoming, seen, row, column, number, channels, incoming_step)
    place = totals + tl.program_id(2) * 2 * channels + column
    one = tl.load(place, mask=present, other=0.0)[None, :]
    two = tl.load(place + channels, mask=present, other=0.0)[None, :]
    answer = factor * (slope - (one + normed * two) / (number * 1.0))
    inside = (row < number)[:, None] & present[None, :]
    target = outgoing + _place(row, column, number, outgoing_step)
    tl.store(target, answer.to(outgoing.dtype.element_ty), mask=inside)
