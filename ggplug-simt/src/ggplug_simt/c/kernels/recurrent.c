/* Recurrent layers: one item for each row (or column) of a state, from the first token to the last.  States are updated in the
   result, in place, after the outputs. */

#define ITEM ((uint32_t)GROUP * LANES + LANE)
#define FROM(name) ((GLOBAL const float *)(name##_data + args.name.offset))

#ifdef CONVOLVE_TOKENS
/* dst[c, t, s] = the sum over k of x[t + k, c, s] weights[k, c] */
KERNEL void convolve_tokens(PARAMETERS)
{
    UNIT_OF(dst);
    float sums[VEC];
    for (int j = 0; j < VEC; j++) {
        const int c = i0 + j;
        sums[j] = 0.0f;
        if (c >= args.dst.ne[0]) continue;
        for (int k = 0; k < args.weights.ne[0]; k++)
            sums[j] = FMA(
                LOAD(f32)(ROW(x, c, i2, 0), args.x.nb[0], i1 + k), LOAD(f32)(ROW(weights, c, 0, 0), args.weights.nb[0], k),
                sums[j]);
    }
    const vec v = VEC_GET(sums);
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, args.dst.ne[0], &v);
}
#endif

#ifdef SCAN
/* h = e**(dt a) h + dt b x, y = c . h; an item is (d, head, sequence) */
KERNEL void scan(PARAMETERS)
{
    const uint32_t item = ITEM;
    if (item >= (uint32_t)args.count) return;
    const int n = args.size, d = (int)(item % (uint32_t)args.dim), unit = (int)(item / (uint32_t)args.dim);
    const int h = unit % args.heads, s = unit / args.heads, group = h / (args.heads / args.of_groups);
    const int64_t of_all = (int64_t)n * args.dim * args.heads * args.sequences;
    GLOBAL float *dst = (GLOBAL float *)(dst_data + args.dst.offset);
    GLOBAL float *row = dst + (int64_t)args.dim * args.heads * args.tokens * args.sequences + (int64_t)item * n;
    const int64_t id = ID(s, 0, 0);
    const int outside = OUTSIDE(id, args.s.ne[3]);
    if (outside && d == 0 && h == 0) NOTE_FAULT(args.s.ne[3]);
    GLOBAL const char *begin = ROW(s, d, h, outside ? 0 : id);
    for (int i = 0; i < n; i++) row[i] = outside || args.tokens == 0 ? 0.0f : LOAD(f32)(begin, 4, i);
    for (int kept = args.tokens < 1 ? 1 : args.tokens; kept < args.snapshots; kept++)
        for (int i = 0; i < n; i++) row[kept * of_all + i] = 0.0f;
    for (int t = 0; t < args.tokens; t++) {
        const float raw_step = LOAD(f32)(ROW(dt, t, s, 0), 4, h), u = exp(-fabs(raw_step)), w = 1.0f + u;
        const float step = fmax(raw_step, 0.0f) + (w == 1.0f ? u : log(w) * (u / (w - 1.0f)));
        const float into = step * LOAD(f32)(ROW(x, h, t, s), 4, d);
        GLOBAL const char *b = ROW(b, group, t, s);
        GLOBAL const char *c = ROW(c, group, t, s);
        GLOBAL const char *a = ROW(a, h, 0, 0);
        const float decay = exp(step * LOAD(f32)(a, 4, 0));
        float sum = 0.0f;
        for (int i = 0; i < n; i++) {
            const float own = args.a.ne[0] > 1 ? exp(step * LOAD(f32)(a, 4, i)) : decay;
            const float now = FMA(row[i], own, LOAD(f32)(b, 4, i) * into);
            sum = FMA(now, LOAD(f32)(c, 4, i), sum);
            row[i] = now;
        }
        dst[((int64_t)(s * args.tokens + t) * args.heads + h) * args.dim + d] = sum;
        const int kept = args.tokens - 1 - t;
        if (kept > 0 && kept < args.snapshots)
            for (int i = 0; i < n; i++) row[kept * of_all + i] = row[i];
    }
}
#endif

#if defined(WKV6) || defined(WKV7) || defined(GATED)
#ifndef WKV7
#define COLUMNS
#endif
/* The state of a head is a matrix.  An item is (j, head, sequence): of wkv7 row j of the state, of the others column j. */
#if defined(WKV6)
KERNEL void wkv6(PARAMETERS)
#elif defined(WKV7)
KERNEL void wkv7(PARAMETERS)
#else
KERNEL void gated(PARAMETERS)
#endif
{
    const uint32_t item = ITEM;
    if (item >= (uint32_t)args.count) return;
    const int n = args.size, j = (int)(item % (uint32_t)n), unit = (int)(item / (uint32_t)n), h = unit % args.heads;
    const int s = unit / args.heads, of_sequence = args.tokens / args.sequences;
    GLOBAL float *dst = (GLOBAL float *)(dst_data + args.dst.offset);
    GLOBAL float *state = dst + (int64_t)n * args.heads * args.tokens + (int64_t)unit * n * n;
    GLOBAL const float *begin = FROM(state) + (int64_t)unit * n * n;
#ifdef COLUMNS
    for (int i = 0; i < n; i++) state[(int64_t)i * n + j] = begin[(int64_t)i * n + j];
#else
    for (int i = 0; i < n; i++) state[(int64_t)j * n + i] = begin[(int64_t)j * n + i];
#endif
    for (int t = s * of_sequence; t < (s + 1) * of_sequence; t++) {
        const int64_t at = ((int64_t)t * args.heads + h) * n;
        float sum = 0.0f;
#ifdef COLUMNS
        const float value = FROM(v)[at + j];
        for (int i = 0; i < n; i++) {
            GLOBAL float *place = state + (int64_t)i * n + j;
            const float kv = FROM(k)[at + i] * value;
#ifdef WKV6
            sum = FMA(FMA(kv, FROM(tf)[h * n + i], *place), FROM(r)[at + i], sum);
            *place = FMA(*place, FROM(td)[at + i], kv);
#else
            *place = FMA(*place, FROM(g)[at + i], kv);
            sum = FMA(*place, FROM(q)[at + i], sum);
#endif
        }
        dst[at + j] = sum * args.scale;
#else
        GLOBAL float *row = state + (int64_t)j * n;
        float along = 0.0f;
        for (int i = 0; i < n; i++) along = FMA(row[i], FROM(a)[at + i], along);
        const float value = FROM(v)[at + j];
        for (int i = 0; i < n; i++) {
            const float now = FMA(along, FROM(b)[at + i], FMA(row[i], FROM(w)[at + i], value * FROM(k)[at + i]));
            sum = FMA(now, FROM(r)[at + i], sum);
            row[i] = now;
        }
        dst[at + j] = sum;
#endif
    }
}
#endif

#ifdef DELTA
/* The gated delta rule: the state is a matrix.  An item is (row, head, sequence). */
KERNEL void delta(PARAMETERS)
{
    const uint32_t item = ITEM;
    if (item >= (uint32_t)args.count) return;
    const int n = args.size, j = (int)(item % (uint32_t)n), unit = (int)(item / (uint32_t)n);
    const int h = unit % args.heads, s = unit / args.heads;
    const int64_t of_all = (int64_t)n * n * args.heads * args.sequences;
    GLOBAL float *dst = (GLOBAL float *)(dst_data + args.dst.offset);
    GLOBAL float *row = dst + (int64_t)n * args.heads * args.tokens * args.sequences + (int64_t)item * n;
    for (int i = 0; i < n; i++) row[i] = args.tokens > 0 ? FROM(state)[(int64_t)item * n + i] : 0.0f;
    for (int kept = args.tokens < 1 ? 1 : args.tokens; kept < args.snapshots; kept++)
        for (int i = 0; i < n; i++) row[kept * of_all + i] = 0.0f;
    for (int t = 0; t < args.tokens; t++) {
        GLOBAL const char *q = ROW(q, h % args.q.ne[1], t, s / (args.sequences / args.q.ne[3]));
        GLOBAL const char *k = ROW(k, h % args.k.ne[1], t, s / (args.sequences / args.k.ne[3]));
        GLOBAL const char *g = ROW(g, h, t, s);
        const int scalar = args.g.ne[0] == 1;
        const float decay = exp(LOAD(f32)(g, 4, 0));
        float sum = 0.0f;
        for (int i = 0; i < n; i++) {
            row[i] *= scalar ? decay : exp(LOAD(f32)(g, 4, i));
            sum = FMA(row[i], LOAD(f32)(k, 4, i), sum);
        }
        const float change = (LOAD(f32)(ROW(v, h, t, s), 4, j) - sum) * LOAD(f32)(ROW(beta, h, t, s), 4, 0);
        sum = 0.0f;
        for (int i = 0; i < n; i++) {
            row[i] = FMA(change, LOAD(f32)(k, 4, i), row[i]);
            sum = FMA(row[i], LOAD(f32)(q, 4, i), sum);
        }
        dst[((int64_t)(s * args.tokens + t) * args.heads + h) * n + j] = sum * args.scale;
        const int kept = args.tokens - 1 - t;
        if (kept > 0 && kept < args.snapshots)
            for (int i = 0; i < n; i++) row[kept * of_all + i] = row[i];
    }
}
#endif
