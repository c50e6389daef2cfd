/* Rotary position embedding: one item for each pair of elements, or element that is only copied, of HEADS heads: rows of one
   position, whose angles are equal. */

#define UNIT 1

/* The address of element i of head i1 in dst: its own place, or (SCATTERED) the row of dst with the number of an id, in which
   the heads of one position are contiguous. */
#ifdef SCATTERED
#define PLACE_OF(i1, i) (row + ((i1) * args.x.ne[0] + (i)) * to)
#else
#define PLACE_OF(i1, i) (ROW(dst, i1, i2, i3) + (i) * to)
#endif

/* Angles grow to thousands of periods, of which only the fraction counts.  So numbers are sums of two floats, high and the
   rounding error of high, which are good to about 46 bits: T. J. Dekker, A floating-point technique for extending
   the available precision (1971).  FMA has to be exact, and nothing else may be contracted. */
typedef struct { float high, low; } pair;

INLINE pair pair_of(float high, float low)
{
    const pair x = { high, low };
    return x;
}

/* high + low, where high is the larger one */
INLINE pair rounded(float high, float low)
{
    const float sum = high + low;
    return pair_of(sum, low - (sum - high));
}

INLINE pair plus(pair x, pair y)
{
    const float sum = x.high + y.high, of_y = sum - x.high;
    return rounded(sum, (x.high - (sum - of_y)) + (y.high - of_y) + (x.low + y.low));
}

INLINE pair times(pair x, pair y)
{
    const float product = x.high * y.high;
    return rounded(product, FMA(x.high, y.high, -product) + (x.high * y.low + x.low * y.high));
}

INLINE pair over(pair x, float y)
{
    const float quotient = x.high / y;
    return rounded(quotient, (FMA(-quotient, y, x.high) + x.low) / y);
}

INLINE pair minus(pair x) { return pair_of(-x.high, -x.low); }

/* An angle minus whole periods, of 2 pi = 6.2831855 - 1.7484556e-7 - 6.860498e-15 (W. J. Cody and W. Waite,
   Software manual for the elementary functions, 1980).  With the first part nothing is rounded: the bits that are left
   are as few as a float has. */
INLINE pair reduced(pair angle)
{
    const float periods = rint(angle.high * 0.15915494f);
    const float small = periods * 1.7484556e-7f;
    const float lost = FMA(periods, 1.7484556e-7f, -small);
    return plus(pair_of(FMA(periods, -6.2831855f, angle.high), angle.low), pair_of(small, FMA(periods, 6.860498e-15f, lost)));
}

/* freq_base**(-2 power / n_dims): the product of those of the powers of two that power is the sum of, up to STEPS */
#define STEP(k) if (power >> k & 1) result = times(result, pair_of(args.step_##k##_high, args.step_##k##_low));

KERNEL void rope(PARAMETERS)
{
    /* Items of a row: the pairs, then the elements outside of them. */
    const uint32_t item = (uint32_t)GROUP * LANES + LANE;
    const int rotated = 2 * args.pairs;
    const uint32_t items = (uint32_t)(args.x.ne[0] - args.pairs);
    uint32_t rest = item / items;
    const int q = (int)(item % items);
    const uint32_t groups = ((uint32_t)args.x.ne[1] + HEADS - 1) / HEADS;
    const int first = (int)(rest % groups * HEADS);
    const int end = first + HEADS < args.x.ne[1] ? first + HEADS : args.x.ne[1];
    rest /= groups;
    const int i2 = (int)(rest % (uint32_t)args.x.ne[2]);
    const int i3 = (int)(rest / (uint32_t)args.x.ne[2]);
    if (i3 >= args.x.ne[3]) return;
    const int64_t from = args.x.nb[0], to = args.dst.nb[0];
#ifdef SCATTERED
    const int64_t id = ID(i2 + i3 * args.x.ne[2], 0, 0);
    if (OUTSIDE(id, args.dst.ne[1])) {
        if (q == 0 && first == 0) NOTE_FAULT(args.dst.ne[1]);
        return;
    }
    GLOBAL char *row = ROW(dst, id, 0, 0);
#endif
    if (q >= args.pairs) {
        const int outside = q - args.pairs;
        const int i = outside < args.first ? outside : outside + rotated;
        for (int i1 = first; i1 < end; i1++) {
            const vec v = VEC_OF(LOAD(TX)(ROW(x, i1, i2, i3), from, i));
            STORE(TD)(PLACE_OF(i1, i), to, 0, 1, &v);
        }
        return;
    }

    int axis = 0, power = q;
#ifdef SEVERAL_AXES
    const int s0 = args.section_0, s1 = args.section_1, s2 = args.section_2;
    const int sector = q % (s0 + s1 + s2 + args.section_3);
#ifdef INTERLEAVED
    axis = 3;
    if (sector % 3 == 0 && sector < 3 * s0) axis = 0;
    if (sector % 3 == 1 && sector < 3 * s1) axis = 1;
    if (sector % 3 == 2 && sector < 3 * s2) axis = 2;
#else
    axis = (sector >= s0) + (sector >= s0 + s1) + (sector >= s0 + s1 + s2);
#ifdef RESTARTED
    power = sector - (axis > 0 ? s0 : 0) - (axis > 1 ? s1 : 0) - (axis > 2 ? s2 : 0);
#endif
#endif
#endif
    const int place = *(GLOBAL const int32_t *)(ROW(pos, 0, 0, 0) + (axis * args.x.ne[2] + i2) * args.pos.nb[0]);
    pair factor = pair_of(args.scale_high, args.scale_low);
#ifdef YARN
    const pair one = pair_of(1.0f, 0.0f);
    pair ramp = times(pair_of(args.slope_high, args.slope_low), pair_of((float)(q - args.low), 0.0f));
    if (ramp.high < 0.0f) ramp = pair_of(0.0f, 0.0f);
    if (ramp.high >= 1.0f) ramp = one;
    const pair mix = times(plus(one, minus(ramp)), pair_of(args.ext_high, args.ext_low));
    factor = plus(times(factor, plus(one, minus(mix))), mix);
#endif
#ifdef FREQ_FACTORS
    factor = over(factor, LOAD(f32)(ROW(freq_factors, 0, 0, 0), args.freq_factors.nb[0], q));
#endif
    pair result = factor;
    STEPS
    const float whole = (float)place;
    pair angle = times(result, pair_of(whole, (float)(place - (int64_t)whole)));
    angle = reduced(angle);
    if (fabs(angle.high) > 4.0f) angle = reduced(angle); /* more periods than float can count */
#ifdef BACK
    angle = minus(angle);
#endif
    /* sin(high + low) to first order in low */
    const float cosine = cos(angle.high), sine = sin(angle.high);
    const float c = (cosine - angle.low * sine) * args.magnitude, s = (sine + angle.low * cosine) * args.magnitude;
#ifdef NORMAL
    const int i = args.first + 2 * q, j = i + 1;
#else
    const int i = args.first + q, j = i + args.pairs;
#endif
    for (int i1 = first; i1 < end; i1++) {
        GLOBAL const char *x = ROW(x, i1, i2, i3);
        const float a = LOAD(TX)(x, from, i), b = LOAD(TX)(x, from, j);
        const vec left = VEC_OF(a * c - b * s), right = VEC_OF(a * s + b * c);
        STORE(TD)(PLACE_OF(i1, i), to, 0, 1, &left);
        STORE(TD)(PLACE_OF(i1, j), to, 0, 1, &right);
    }
}
