/* The lightning indexer of sparse attention, and hyper-connections: one item for each unit of the result. */

#ifdef LIGHTNING_INDEXER
/* dst[j, t] = the sum over heads h of max(q[:, h, t] . k[:, 0, j], 0) weights[h, t], and mask[j, t].
   A row of k is read once for HEADS heads. */
KERNEL void lightning_indexer(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.k.ne[0], t = i1, s = i3;
    float results[VEC];
    for (int j = 0; j < VEC; j++) {
        const int key = i0 + j;
        results[j] = 0.0f;
        if (key >= args.dst.ne[0]) continue;
        GLOBAL const char *k = ROW(k, 0, key, s);
        float sum = LOAD(f16)(ROW(mask, t, 0, s % args.mask.ne[3]), args.mask.nb[0], key);
        float total = 0.0f;
        for (int first = 0; first < args.q.ne[1]; first += HEADS) {
            const int count = args.q.ne[1] - first < HEADS ? args.q.ne[1] - first : HEADS;
            vec products[HEADS];
            for (int h = 0; h < HEADS; h++) products[h] = VEC_OF(0.0f);
            for (int i = 0; i < n; i += VEC) {
                const vec v = FETCH(TK)(k, args.k.nb[0], i, n, 0.0f);
                for (int h = 0; h < count; h++)
                    products[h] = VEC_FMA(FETCH(f32)(ROW(q, first + h, t, s), args.q.nb[0], i, n, 0.0f), v, products[h]);
            }
            for (int h = 0; h < count; h++) {
                const float product = vec_sum(products[h]);
                const float weight = LOAD(f32)(ROW(weights, t, 0, s), args.weights.nb[0], first + h);
                total = FMA(product > 0.0f ? product : 0.0f, weight, total);
            }
        }
        results[j] = total + sum;
    }
    const vec v = VEC_GET(results);
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, args.dst.ne[0], &v);
}
#endif

#ifdef COMBINE_STREAMS
/* A token's matrix of 4 by 4: a softmax along its rows, then columns and rows divided by their sums alternately; an item is a token. */
KERNEL void combine_streams(PARAMETERS)
{
    const int t = (int)((uint32_t)GROUP * LANES + LANE);
    if (t >= args.dst.ne[2]) return;
    float y[16];
    const float scale = LOAD(f32)(ROW(scale, 0, 0, 0), args.scale.nb[0], 2);
    for (int s = 0; s < 4; s++) {
        float largest = 0.0f, sum = 0.0f;
        for (int d = 0; d < 4; d++) {
            const int i = 4 * s + d;
            const float base = LOAD(f32)(ROW(base, 0, 0, 0), args.base.nb[0], 8 + i);
            y[i] = FMA(LOAD(f32)(ROW(mixes, t, 0, 0), args.mixes.nb[0], 8 + i), scale, base);
            largest = d == 0 || y[i] > largest ? y[i] : largest;
        }
        for (int d = 0; d < 4; d++) sum += y[4 * s + d] = exp(y[4 * s + d] - largest);
        for (int d = 0; d < 4; d++) y[4 * s + d] = y[4 * s + d] / sum + args.eps;
    }
    for (int iteration = 0; iteration < args.n_iter; iteration++) {
        for (int s = 0; s < 4 && iteration > 0; s++) {
            const float sum = args.eps + y[4 * s] + y[4 * s + 1] + y[4 * s + 2] + y[4 * s + 3];
            for (int d = 0; d < 4; d++) y[4 * s + d] /= sum;
        }
        for (int d = 0; d < 4; d++) {
            const float sum = args.eps + y[d] + y[4 + d] + y[8 + d] + y[12 + d];
            for (int s = 0; s < 4; s++) y[4 * s + d] /= sum;
        }
    }
    GLOBAL float *dst = (GLOBAL float *)ROW(dst, 0, t, 0);
    for (int i = 0; i < 16; i++) dst[i] = y[i];
}
#endif

#ifdef STREAMS_BEFORE
/* dst[i, t] = the sum over streams h of x[i, h, t] weights[h, t] */
KERNEL void streams_before(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.dst.ne[0];
    vec sum = VEC_OF(0.0f);
    for (int h = 0; h < args.x.ne[1]; h++)
        sum = VEC_FMA(FETCH(f32)(ROW(x, h, i1, 0), args.x.nb[0], i0, n, 0.0f),
            VEC_OF(LOAD(f32)(ROW(weights, i1, 0, 0), args.weights.nb[0], h)), sum);
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &sum);
}
#endif

#ifdef STREAMS_GATED
/* dst[i, t] = scale times the sum over streams h of x[i, h, t] / (1 + exp(-gate[i, h, t])) */
KERNEL void streams_gated(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.dst.ne[0];
    vec sum = VEC_OF(0.0f);
    for (int h = 0; h < args.x.ne[1]; h++)
        sum = sum + FETCH(f32)(ROW(x, h, i1, 0), args.x.nb[0], i0, n, 0.0f)
            / (VEC_OF(1.0f) + VEC_EXP(VEC_OF(0.0f) - FETCH(f32)(ROW(gate, h, i1, 0), args.gate.nb[0], i0, n, 0.0f)));
    sum = sum * VEC_OF(args.scale);
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &sum);
}
#endif

#ifdef STREAMS_BEHIND
/* dst[i, d, t] = x[i, t] post[d, t], and the sum over streams s of residual[i, s, t] comb[d, s, t] */
KERNEL void streams_behind(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.dst.ne[0];
    vec sum = FETCH(f32)(ROW(x, i2, 0, 0), args.x.nb[0], i0, n, 0.0f)
        * VEC_OF(LOAD(f32)(ROW(post, i2, 0, 0), args.post.nb[0], i1));
    for (int s = 0; s < args.residual.ne[1]; s++)
        sum = VEC_FMA(FETCH(f32)(ROW(residual, s, i2, 0), args.residual.nb[0], i0, n, 0.0f),
            VEC_OF(LOAD(f32)(ROW(comb, s, i2, 0), args.comb.nb[0], i1)), sum);
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &sum);
}
#endif
