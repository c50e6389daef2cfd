/* Sliding windows of images.  Along an axis, tap k of window o reads element (o * stride - padding + k * dilation) / quotient
   of the image if that is a whole number and inside; a quotient above 1 makes a transposed convolution, or a gradient, of it. */

#ifdef STRETCHED
#define WHOLE(position, divisor) ((position) % (divisor) == 0)
#define ELEMENT(position, divisor) ((position) / (divisor))
#else
#define WHOLE(position, divisor) 1
#define ELEMENT(position, divisor) (position)
#endif
#define INSIDE(position, divisor, extent) \
    ((position) >= 0 && WHOLE(position, divisor) && ELEMENT(position, divisor) < (extent))

#define LOWEST (-3.402823466e38f)

#ifdef WINDOWS
/* Reductions of windows of planes: RULE 0 sum, 1 weighted sum, 2 mean of what is inside, 4 largest number, 5 the number of the tap
   with it (int), 3 sum of the elements for which this number, in chosen, is that of the tap.  tap0 and tap1: offsets in bytes between
   consecutive taps, in addition to their positions.  BACK: a gradient; of each step0 or step1 taps an element has one at most. */
#ifdef BACK
#define FIRST(position, step, far, last) \
    ((position) % (step) + ((position) > (last) ? ((position) - (last)) / (far) * (step) : 0))
#define STEP(step) (step)
#define PAST(position) ((position) < 0)
#else
#define FIRST(position, step, far, last) 0
#define STEP(step) 1
#define PAST(position) 0
#endif

KERNEL void windows(PARAMETERS)
{
    UNIT_OF(dst);
    float results[VEC];
    const int y = i1 * args.stride1 - args.padding1;
    const int ky0 = FIRST(y, args.step1, -args.dilation1 * args.step1, (args.height - 1) * args.quotient1);
    for (int j = 0; j < VEC; j++) {
        float sum = RULE >= 4 ? LOWEST : 0.0f;
        int count = 0, place = -1;
        const int x = (i0 + j) * args.stride0 - args.padding0;
        const int kx0 = FIRST(x, args.step0, -args.dilation0 * args.step0, (args.width - 1) * args.quotient0);
        for (int ky = ky0; i0 + j < args.dst.ne[0] && ky < args.taps1; ky += STEP(args.step1)) {
            const int py = y + ky * args.dilation1;
            if (PAST(py)) break;
            if (!INSIDE(py, args.quotient1, args.height)) continue;
            GLOBAL const char *row = ROW(x, ELEMENT(py, args.quotient1), i2, i3) + (int64_t)ky * args.tap1;
            for (int kx = kx0; kx < args.taps0; kx += STEP(args.step0)) {
                const int px = x + kx * args.dilation0;
                if (PAST(px)) break;
                if (!INSIDE(px, args.quotient0, args.width)) continue;
                const float v = LOAD(TX)(row + (int64_t)kx * args.tap0, args.x.nb[0], ELEMENT(px, args.quotient0));
                count++;
#if RULE >= 4
                if (v > sum) { sum = v; place = ky * args.taps0 + kx; }
#elif RULE == 1
                sum = FMA(v, LOAD(TW)(ROW(weights, ky, i2, i3), args.weights.nb[0], kx), sum);
#elif RULE == 3
                GLOBAL const int *places = (GLOBAL const int *)ROW(chosen, ELEMENT(py, args.quotient1), i2, i3);
                if (places[ELEMENT(px, args.quotient0)] == ky * args.taps0 + kx) sum += v;
#else
                sum += v;
#endif
            }
        }
#if RULE == 0
        sum /= args.divisor;
#elif RULE == 2
        sum = count > 0 ? sum / (float)count : 0.0f;
#elif RULE == 5
        if (i0 + j < args.dst.ne[0]) ((GLOBAL int *)ROW(dst, i1, i2, i3))[i0 + j] = place;
#endif
        results[j] = sum;
    }
#if RULE != 5
    const vec v = VEC_GET(results);
    STORE(TD)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, args.dst.ne[0], &v);
#endif
}
#endif

#ifdef CONVOLVE
/* dst[window, o, n] = sum over channels and taps: DIMS says how many axes windows slide along.  Beyond the image elements are 0, which
   times a weight that is not finite is NaN.  A TRANSPOSED kernel has its channels after those of dst, and sums only elements of x. */
#if DIMS == 3
#define IMAGE_ROW(c, z, y) ROW(x, y, z, n * args.channels + (c))
#define KERNEL_ROW(c, kz, ky) ROW(weights, ky, kz, o * args.channels + (c))
#elif DIMS == 2
#define IMAGE_ROW(c, z, y) ROW(x, y, c, n)
#ifdef TRANSPOSED
#define KERNEL_ROW(c, kz, ky) ROW(weights, ky, o, c)
#else
#define KERNEL_ROW(c, kz, ky) ROW(weights, ky, c, o)
#endif
#else
#define IMAGE_ROW(c, z, y) ROW(x, c, 0, 0)
#define KERNEL_ROW(c, kz, ky) ROW(weights, o, c, 0)
#endif

#ifdef TRANSPOSED
#define PASSED(beyond) (beyond)
#else
#define PASSED(beyond) 0
#endif

KERNEL void convolve(PARAMETERS)
{
    UNIT_OF(dst);
#if DIMS == 3
    const int o = i3 % args.out, n = i3 / args.out, w1 = i1, w2 = i2;
#elif DIMS == 2
    const int o = i2, n = i3, w1 = i1, w2 = 0;
#else
    const int o = i1, w1 = 0, w2 = 0;
#endif
    float sums[VEC];
    for (int j = 0; j < VEC; j++) sums[j] = 0.0f;
    for (int kz = 0; kz < args.taps2; kz++) {
        const int pz = w2 * args.stride2 - args.padding2 + kz * args.dilation2;
        const int in_plane = INSIDE(pz, args.quotient2, args.extent2);
        if (PASSED(!in_plane)) continue;
        for (int ky = 0; ky < args.taps1; ky++) {
            const int py = w1 * args.stride1 - args.padding1 + ky * args.dilation1;
            const int in_row = in_plane && INSIDE(py, args.quotient1, args.extent1);
            if (PASSED(!in_row)) continue;
            for (int kx = 0; kx < args.taps0; kx++) {
                const int px = i0 * args.stride0 - args.padding0 + kx * args.dilation0;
                for (int c = 0; c < args.channels; c++) {
                    const float weight = LOAD(TW)(KERNEL_ROW(c, kz, ky), args.weights.nb[0], kx);
                    GLOBAL const char *row = in_row
                        ? IMAGE_ROW(c, ELEMENT(pz, args.quotient2), ELEMENT(py, args.quotient1)) : IMAGE_ROW(c, 0, 0);
                    for (int j = 0; j < VEC; j++) {
                        const int p = px + j * args.stride0;
                        const int inside = in_row && i0 + j < args.dst.ne[0] && INSIDE(p, args.quotient0, args.extent0);
                        if (PASSED(!inside)) continue;
                        const float v = inside ? LOAD(f32)(row, args.x.nb[0], ELEMENT(p, args.quotient0)) : 0.0f;
                        sums[j] = FMA(weight, v, sums[j]);
                    }
                }
            }
        }
    }
    const vec v = VEC_GET(sums);
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, args.dst.ne[0], &v);
}
#endif

#ifdef UNFOLD
/* dst[:, window] = the numbers of a window: all taps of a channel, then those of the next.  DIMS as above. */
KERNEL void unfold(PARAMETERS)
{
    UNIT_OF(dst);
#if DIMS == 3
    const int w1 = i2, w2 = i3 % args.windows2, n = i3 / args.windows2;
#elif DIMS == 2
    const int w1 = i2, w2 = 0, n = i3;
#else
    const int w1 = 0, w2 = 0, n = i2;
#endif
    float values[VEC];
    for (int j = 0; j < VEC; j++) {
        const int k = i0 + j;
        const int kx = k % args.taps0, above = k / args.taps0;
        const int ky = above % args.taps1, planes = above / args.taps1;
        const int kz = planes % args.taps2, c = planes / args.taps2;
        const int px = i1 * args.stride0 - args.padding0 + kx * args.dilation0;
        const int py = w1 * args.stride1 - args.padding1 + ky * args.dilation1;
        const int pz = w2 * args.stride2 - args.padding2 + kz * args.dilation2;
        values[j] = 0.0f;
        if (k < args.dst.ne[0] && px >= 0 && py >= 0 && pz >= 0 && px < args.extent0 && py < args.extent1 && pz < args.extent2) {
#if DIMS == 3
            values[j] = LOAD(TX)(ROW(x, py, pz, n * args.channels + c), args.x.nb[0], px);
#elif DIMS == 2
            values[j] = LOAD(TX)(ROW(x, py, c, n), args.x.nb[0], px);
#else
            values[j] = LOAD(TX)(ROW(x, c, n, 0), args.x.nb[0], px);
#endif
        }
    }
    const vec v = VEC_GET(values);
    STORE(TD)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, args.dst.ne[0], &v);
}
#endif
