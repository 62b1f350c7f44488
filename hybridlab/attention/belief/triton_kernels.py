"""The Triton kernels of triton.py, which says what they compute; only that module imports this one.

A program owns a block of rows and goes over the keys, or owns a block of keys and goes over the rows: what is summed
over keys (the normalisers, the output, the gradient of q) comes from the first, what is summed over rows (messages,
their gradients, those of k and v) from the second. No two programs write to one place, so results repeat to the bit.

Tensors are contiguous: q, out (P, S, D), k, v (N, S, D), numbers of rows or keys (P, S). A tile (b, e) is a block of
rows by a block of keys, both of BLOCK. All is computed in fp32, and sums over rows are carried in fp64, from which
later terms can be subtracted. Where q, k and v are of 16 bits, products have operands of 16 bits or, where more range
or digits are needed, of TF32. WIDTH is D rounded up to a power of two, as Triton's blocks must be.

Shape legend: P pairs of a batch row and a query head, N of a batch row and a KV head, S positions, D head width.
"""

# Triton reads the source of these functions: their arguments are untyped, as in its own examples.
try:
    import triton
    import triton.language as tl
except ImportError:
    # In `try`, because transformers demands every other package that a file of an exported model imports.
    raise


@triton.jit
def _log1p(x):
    """log(1 + x) for −1 < x < 2^126, without the GPU's fast log, which is exact to 2^-22 and so loses most digits of a
    small x. With 1 + x = 2^e (1 + r), r from −1/4 to 1/2, it is e log 2 + 2 artanh(r / (2 + r)), summed to the term
    beyond which fp32 has no digits."""
    # A power of two as the bits of a float: those of 2^e, from the exponent of 1 + x once that of 3/4 is taken away.
    power = ((1.0 + x).to(tl.int32, bitcast=True) - 0x3F400000) & -0x800000
    scale = (0x3F800000 - power).to(tl.float32, bitcast=True)
    r = x * scale + (scale - 1.0)
    t = r / (r + 2.0)
    s = t * t
    series = 1.0 + s * (1 / 3 + s * (1 / 5 + s * (1 / 7 + s * (1 / 9 + s / 11))))
    return power.to(tl.float32) * (0.6931471805599453 / 0x800000) + 2.0 * t * series


@triton.jit
def _product(a, b, PRECISION: tl.constexpr):
    """a b in fp32, of b as it was loaded. Of 16 bits: a is rounded to the type of b."""
    if PRECISION == "ieee":
        return _wide_product(a, b, PRECISION)
    else:
        return tl.dot(a.to(b.dtype), b)


@triton.jit
def _wide_product(a, b, PRECISION: tl.constexpr):
    """a b in fp32, with the range of fp32: for gradients of the prior, which fp16 cannot hold and whose mean is taken
    off after the product."""
    return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)


@triton.jit
def _block(number, BLOCK: tl.constexpr):
    """(BLOCK,): the positions of a block."""
    return number * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _load(source, pair, positions, length):
    """(b,): numbers of these positions, from (P, S); 0 beyond the end."""
    return tl.load(source + pair * length + positions, mask=positions < length, other=0)


@triton.jit
def _store(target, pair, positions, length, values):
    tl.store(target + pair * length + positions, values, mask=positions < length)


@triton.jit
def _load_rows(source, pair, positions, length, D: tl.constexpr, WIDTH: tl.constexpr):
    """(b, WIDTH): rows of (P, S, D); 0 beyond the end and the width."""
    column = tl.arange(0, WIDTH)
    inside = (positions < length)[:, None] & (column < D)[None, :]
    place = (pair * length + positions)[:, None] * D + column[None, :]
    return tl.load(source + place, mask=inside, other=0.0)


@triton.jit
def _store_rows(target, pair, positions, length, values, D: tl.constexpr, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)
    inside = (positions < length)[:, None] & (column < D)[None, :]
    place = (pair * length + positions)[:, None] * D + column[None, :]
    tl.store(target + place, values.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _scores(q, k, valid, segments, row, i, j, length, scale, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
    """(b, e): the scores of the rows i for the keys j of a batch row, −∞ where a key is hidden, as by `Visible`."""
    visible = (i < length)[:, None] & (j < length)[None, :]
    if CAUSAL:
        visible = visible & (j[None, :] <= i[:, None])
    if segments is not None:
        visible = visible & (_load(segments, row, i, length)[:, None] == _load(segments, row, j, length)[None, :])
    if valid is not None:
        # A padded query sees its own key, so that no row of the softmax is empty.
        visible = visible & ((_load(valid, row, j, length) != 0)[None, :] | (j[None, :] == i[:, None]))
    return tl.where(visible, _product(q, tl.trans(k), PRECISION) * scale, float("-inf"))


@triton.jit
def _added(largest, total, scores):
    """The largest score and Σ exp(score − largest) of each row, with a tile (b, e) of scores more; also the factor of
    what has been summed before, and the weights (b, e)."""
    grown = tl.maximum(largest, tl.max(scores, 1))
    shrink = tl.exp(largest - grown)
    weights = tl.exp(scores - grown[:, None])
    return grown, total * shrink + tl.sum(weights, 1), shrink, weights


@triton.jit
def _filled(total):
    """Sums of weights, 1 for the rows beyond the end, which have none."""
    return tl.where(total > 0, total, 1.0)


@triton.jit
def _received(sent, before, EARLIER: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """(b, e): the messages that the rows get. sent (b, e): those of the rows. before (e,): the messages of the rows
    before the block or, if not EARLIER, of all."""
    if EARLIER:
        i = tl.arange(0, BLOCK)
        lower = (i[:, None] > i[None, :]).to(tl.float32)
        return before.to(tl.float32)[None, :] + tl.dot(lower, sent, input_precision=PRECISION)
    else:
        return before.to(tl.float32)[None, :] - sent


@triton.jit
def _weights_and_gradients(refined, normaliser, dout, v, delta, PRECISION: tl.constexpr):
    """The refined weights and the gradients of the refined scores, each (b, e). delta (b,): Σ_d dout · out."""
    weights = tl.exp(refined - normaliser[:, None])
    return weights, weights * (_product(dout, tl.trans(v), PRECISION) - delta[:, None])


@triton.jit
def _prior_gradients(
    prior, factor, refined, after, EARLIER: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):
    """(b, e): the gradients of the prior. refined (b, e): those of the refined scores, which a message to a row shares.
    after (e,): their sums over the rows after the block or, if not EARLIER, over all."""
    if EARLIER:
        i = tl.arange(0, BLOCK)
        upper = (i[:, None] < i[None, :]).to(tl.float32)
        messages = after.to(tl.float32)[None, :] + tl.dot(upper, refined, input_precision=PRECISION)
    else:
        messages = after.to(tl.float32)[None, :] - refined
    return messages * (factor[:, None] / (1.0 + factor[:, None] * prior))


@triton.jit
def prior_normalisers(
    q_ptr, k_ptr, valid, segments, prior_ptr, length, heads, group, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """prior (P, S): the logarithm of each row's Σ exp(score). Programs: P, blocks of rows."""
    pair, current = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = _block(current, BLOCK)
    q = _load_rows(q_ptr, pair, i, length, D, WIDTH)
    # Finite, so that no difference of two infinities occurs in rows that see no key of a tile.
    largest, total = tl.full([BLOCK], -1e30, tl.float32), tl.zeros([BLOCK], tl.float32)
    stop = tl.cdiv(length, BLOCK)
    if CAUSAL:
        stop = current + 1
    for block in range(0, stop):
        j = _block(block, BLOCK)
        k = _load_rows(k_ptr, pair // group, j, length, D, WIDTH)
        scores = _scores(q, k, valid, segments, pair // heads, i, j, length, scale, CAUSAL, PRECISION)
        largest, total, _, _ = _added(largest, total, scores)
    _store(prior_ptr, pair, i, length, largest + tl.log(_filled(total)))


@triton.jit
def message_sums(
    q_ptr, k_ptr, valid, segments, prior_ptr, factor_ptr, sums_ptr, before_ptr,
    length, heads, group, scale, first, stop, slots,
    CAUSAL: tl.constexpr, EARLIER: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the messages of the blocks of rows `first` to `stop` to sums (P, S) in fp64. If EARLIER, put the sums before
    each of these blocks into before (P, slots, S). Programs: P, blocks of keys."""
    pair, current = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j = _block(current, BLOCK)
    k = _load_rows(k_ptr, pair // group, j, length, D, WIDTH)
    sums = _load(sums_ptr, pair, j, length)
    start = first
    if CAUSAL:
        start = tl.maximum(first, current)
    for block in range(start, stop):
        if EARLIER:
            _store(before_ptr, pair * slots + block - first, j, length, sums.to(tl.float32))
        i = _block(block, BLOCK)
        q = _load_rows(q_ptr, pair, i, length, D, WIDTH)
        scores = _scores(q, k, valid, segments, pair // heads, i, j, length, scale, CAUSAL, PRECISION)
        prior = tl.exp(scores - _load(prior_ptr, pair, i, length)[:, None])
        sent = _log1p(_load(factor_ptr, pair // heads, i, length)[:, None] * prior)
        sums += tl.sum(sent, 0).to(tl.float64)
    _store(sums_ptr, pair, j, length, sums)


@triton.jit
def refined_rows(
    q_ptr, k_ptr, v_ptr, valid, segments, prior_ptr, factor_ptr, before_ptr, refined_ptr, out_ptr,
    length, heads, group, scale, first, slots,
    CAUSAL: tl.constexpr, EARLIER: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out (P, S, D) of the blocks of rows from `first`, and refined (P, S), the normalisers of their refined scores.
    before: as from `message_sums`; if not EARLIER, the sums over all rows, of one slot. Programs: P, blocks of rows."""
    pair, slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    current = first + slot
    i = _block(current, BLOCK)
    q = _load_rows(q_ptr, pair, i, length, D, WIDTH)
    normaliser, factor = _load(prior_ptr, pair, i, length), _load(factor_ptr, pair // heads, i, length)
    largest, total = tl.full([BLOCK], -1e30, tl.float32), tl.zeros([BLOCK], tl.float32)
    out = tl.zeros([BLOCK, WIDTH], tl.float32)
    stop = tl.cdiv(length, BLOCK)
    if CAUSAL:
        stop = current + 1
    if not EARLIER:
        slot = 0
    for block in range(0, stop):
        j = _block(block, BLOCK)
        k = _load_rows(k_ptr, pair // group, j, length, D, WIDTH)
        v = _load_rows(v_ptr, pair // group, j, length, D, WIDTH)
        scores = _scores(q, k, valid, segments, pair // heads, i, j, length, scale, CAUSAL, PRECISION)
        sent = _log1p(factor[:, None] * tl.exp(scores - normaliser[:, None]))
        before = _load(before_ptr, pair * slots + slot, j, length)
        refined = scores + _received(sent, before, EARLIER, BLOCK, PRECISION)
        largest, total, shrink, weights = _added(largest, total, refined)
        out = out * shrink[:, None] + _product(weights, v, PRECISION)
    total = _filled(total)
    _store_rows(out_ptr, pair, i, length, out / total[:, None], D, WIDTH)
    _store(refined_ptr, pair, i, length, largest + tl.log(total))


@triton.jit
def output_products(
    out_ptr, dout_ptr, delta_ptr, length,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """delta (P, S): Σ_d dout · out, which is Σ_k weight · its gradient. Programs: P, blocks of rows."""
    pair, i = tl.program_id(0).to(tl.int64), _block(tl.program_id(1), BLOCK)
    out = _load_rows(out_ptr, pair, i, length, D, WIDTH)
    dout = _load_rows(dout_ptr, pair, i, length, D, WIDTH)
    _store(delta_ptr, pair, i, length, tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1))


@triton.jit
def gradient_sums(
    q_ptr, k_ptr, v_ptr, valid, segments, prior_ptr, factor_ptr, refined_ptr, dout_ptr, delta_ptr,
    sums_ptr, dsums_ptr, before_ptr, after_ptr, length, heads, group, scale, first, stop, slots,
    CAUSAL: tl.constexpr, EARLIER: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the gradients of the refined scores of the blocks of rows `first` to `stop` to dsums (P, S) in fp64. If
    EARLIER, take the messages of these rows from sums (P, S), which are those of all rows before `stop`, and put the
    sums before and the gradients after each block into before and after (P, slots, S); otherwise sums are those of all
    rows and stay. Programs: P, blocks of keys."""
    pair, current = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j = _block(current, BLOCK)
    k = _load_rows(k_ptr, pair // group, j, length, D, WIDTH)
    v = _load_rows(v_ptr, pair // group, j, length, D, WIDTH)
    sums, dsums = _load(sums_ptr, pair, j, length), _load(dsums_ptr, pair, j, length)
    start = first
    if CAUSAL:
        start = tl.maximum(first, current)
    for step in range(start, stop):
        block = stop - 1 - (step - start)
        i = _block(block, BLOCK)
        q = _load_rows(q_ptr, pair, i, length, D, WIDTH)
        dout = _load_rows(dout_ptr, pair, i, length, D, WIDTH)
        scores = _scores(q, k, valid, segments, pair // heads, i, j, length, scale, CAUSAL, PRECISION)
        prior = tl.exp(scores - _load(prior_ptr, pair, i, length)[:, None])
        sent = _log1p(_load(factor_ptr, pair // heads, i, length)[:, None] * prior)
        if EARLIER:
            sums -= tl.sum(sent, 0).to(tl.float64)
            _store(before_ptr, pair * slots + block - first, j, length, sums.to(tl.float32))
            _store(after_ptr, pair * slots + block - first, j, length, dsums.to(tl.float32))
        refined = scores + _received(sent, sums, EARLIER, BLOCK, PRECISION)
        normaliser, delta = _load(refined_ptr, pair, i, length), _load(delta_ptr, pair, i, length)
        _, drefined = _weights_and_gradients(refined, normaliser, dout, v, delta, PRECISION)
        dsums += tl.sum(drefined, 0).to(tl.float64)
    _store(dsums_ptr, pair, j, length, dsums)
    if EARLIER:
        _store(sums_ptr, pair, j, length, sums)


@triton.jit
def query_gradients(
    q_ptr, k_ptr, v_ptr, valid, segments, prior_ptr, factor_ptr, refined_ptr, dout_ptr, delta_ptr,
    before_ptr, after_ptr, mean_ptr, dq_ptr, length, heads, group, scale, first, slots,
    CAUSAL: tl.constexpr, EARLIER: tl.constexpr, DETACHED: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq (P, S, D) of the blocks of rows from `first`, and mean (P, S), the mean of the gradients of each row's prior
    under it, which the softmax subtracts. before, after: as from `gradient_sums`; if not EARLIER, the sums over all
    rows. Programs: P, blocks of rows."""
    pair, slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    current = first + slot
    i = _block(current, BLOCK)
    q = _load_rows(q_ptr, pair, i, length, D, WIDTH)
    dout = _load_rows(dout_ptr, pair, i, length, D, WIDTH)
    factor, delta = _load(factor_ptr, pair // heads, i, length), _load(delta_ptr, pair, i, length)
    normaliser, refined_normaliser = _load(prior_ptr, pair, i, length), _load(refined_ptr, pair, i, length)
    mean, dq = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK, WIDTH], tl.float32)
    mean_key = tl.zeros([BLOCK, WIDTH], tl.float32)
    stop = tl.cdiv(length, BLOCK)
    if CAUSAL:
        stop = current + 1
    if not EARLIER:
        slot = 0
    for block in range(0, stop):
        j = _block(block, BLOCK)
        k = _load_rows(k_ptr, pair // group, j, length, D, WIDTH)
        v = _load_rows(v_ptr, pair // group, j, length, D, WIDTH)
        scores = _scores(q, k, valid, segments, pair // heads, i, j, length, scale, CAUSAL, PRECISION)
        prior = tl.exp(scores - normaliser[:, None])
        sent = _log1p(factor[:, None] * prior)
        before = _load(before_ptr, pair * slots + slot, j, length)
        refined = scores + _received(sent, before, EARLIER, BLOCK, PRECISION)
        _, dscores = _weights_and_gradients(refined, refined_normaliser, dout, v, delta, PRECISION)
        if not DETACHED:
            after = _load(after_ptr, pair * slots + slot, j, length)
            dprior = prior * _prior_gradients(prior, factor, dscores, after, EARLIER, BLOCK, PRECISION)
            mean += tl.sum(dprior, 1)
            mean_key += _wide_product(prior, k, PRECISION)
            dscores += dprior
        dq += _wide_product(dscores, k, PRECISION)
    # The mean is known only now; each key has got it with the weight that the prior gives it.
    _store_rows(dq_ptr, pair, i, length, (dq - mean[:, None] * mean_key) * scale, D, WIDTH)
    _store(mean_ptr, pair, i, length, mean)


@triton.jit
def key_gradients(
    q_ptr, k_ptr, v_ptr, valid, segments, prior_ptr, factor_ptr, refined_ptr, dout_ptr, delta_ptr,
    sums_ptr, dsums_ptr, mean_ptr, dk_ptr, dv_ptr, length, heads, group, scale,
    CAUSAL: tl.constexpr, EARLIER: tl.constexpr, DETACHED: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv (N, S, D), summed over the query heads of each KV head. sums, dsums (P, S): the messages of all rows
    and, if not EARLIER, the gradients of all refined scores. Programs: N, blocks of keys."""
    shared, current = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j = _block(current, BLOCK)
    k = _load_rows(k_ptr, shared, j, length, D, WIDTH)
    v = _load_rows(v_ptr, shared, j, length, D, WIDTH)
    dk, dv = tl.zeros([BLOCK, WIDTH], tl.float32), tl.zeros([BLOCK, WIDTH], tl.float32)
    start, stop = 0, tl.cdiv(length, BLOCK)
    if CAUSAL:
        start = current
    for member in range(0, group):
        pair = shared * group + member
        sums, after = _load(sums_ptr, pair, j, length), tl.zeros([BLOCK], tl.float64)
        if not EARLIER:
            after = _load(dsums_ptr, pair, j, length)
        for step in range(start, stop):
            i = _block(stop - 1 - (step - start), BLOCK)
            q = _load_rows(q_ptr, pair, i, length, D, WIDTH)
            dout = _load_rows(dout_ptr, pair, i, length, D, WIDTH)
            factor = _load(factor_ptr, pair // heads, i, length)
            scores = _scores(q, k, valid, segments, pair // heads, i, j, length, scale, CAUSAL, PRECISION)
            prior = tl.exp(scores - _load(prior_ptr, pair, i, length)[:, None])
            sent = _log1p(factor[:, None] * prior)
            if EARLIER:
                sums -= tl.sum(sent, 0).to(tl.float64)
            refined = scores + _received(sent, sums, EARLIER, BLOCK, PRECISION)
            normaliser, delta = _load(refined_ptr, pair, i, length), _load(delta_ptr, pair, i, length)
            weights, dscores = _weights_and_gradients(refined, normaliser, dout, v, delta, PRECISION)
            dv += _product(tl.trans(weights), dout, PRECISION)
            if not DETACHED:
                dprior = _prior_gradients(prior, factor, dscores, after, EARLIER, BLOCK, PRECISION)
                if EARLIER:
                    after += tl.sum(dscores, 0).to(tl.float64)
                dscores += prior * (dprior - _load(mean_ptr, pair, i, length)[:, None])
            dk += _wide_product(tl.trans(dscores), q, PRECISION)
    _store_rows(dk_ptr, shared, j, length, dk * scale, D, WIDTH)
    _store_rows(dv_ptr, shared, j, length, dv, D, WIDTH)
