/* Interpolation, partition of images into windows, and relative positions: one item for each unit of the result. */

#ifdef INTERPOLATE
/* METHOD 0 nearest, 1 two pixels, 2 four pixels, 3 all that the new pixel covers.  Which pixels, and with which weights, follows from
   where the new one lies: coordinates in float32, as the op has them. */
INLINE int clipped(int i, int n) { return i < 0 ? 0 : i < n ? i : n - 1; }
#if METHOD == 0
INLINE int first_at(int i, float scale, float centre, int n) { return clipped((int)((float)i / scale), n); }
INLINE int count_at(int i, float scale, float centre, int n) { return 1; }
INLINE float weight_at(int i, int t, float scale, float centre, int n) { return 1.0f; }
#elif METHOD == 3
INLINE float middle(int i, float scale, float centre) { return ((float)i + centre) / scale; }
INLINE float support_of(float scale) { return fmax(1.0f, 1.0f / scale); }
INLINE int first_at(int i, float scale, float centre, int n)
{
    const int first = (int)(middle(i, scale, centre) - support_of(scale) + centre);
    return first > 0 ? first : 0;
}
INLINE int count_at(int i, float scale, float centre, int n)
{
    const int end = (int)(middle(i, scale, centre) + support_of(scale) + centre);
    return (end < n ? end : n) - first_at(i, scale, centre, n);
}
INLINE float weight_at(int i, int t, float scale, float centre, int n)
{
    const float apart = (float)(first_at(i, scale, centre, n) + t) - middle(i, scale, centre) + centre;
    return fmax(1.0f - fabs(apart) / support_of(scale), 0.0f);
}
#else
INLINE float middle(int i, float scale, float centre) { return ((float)i + centre) / scale - centre; }
INLINE int first_at(int i, float scale, float centre, int n)
{
    return (int)floor(middle(i, scale, centre)) - (METHOD == 2 ? 1 : 0);
}
INLINE int count_at(int i, float scale, float centre, int n) { return METHOD == 2 ? 4 : 2; }
INLINE float weight_at(int i, int t, float scale, float centre, int n)
{
    const float x = middle(i, scale, centre);
#if METHOD == 1
    const float part = fmin(fmax(x - (float)clipped((int)floor(x), n), 0.0f), 1.0f);
    return t == 0 ? 1.0f - part : part;
#else
    const float apart = fabs(x - floor(x) + 1.0f - (float)t);
    if (t == 1 || t == 2) return (1.25f * apart - 2.25f) * apart * apart + 1.0f;
    return ((-0.75f * apart + 3.75f) * apart - 6.0f) * apart + 3.0f;
#endif
}
#endif

KERNEL void interpolate(PARAMETERS)
{
    UNIT_OF(dst);
    const int x2 = clipped((int)((float)i2 / args.scale2), args.x.ne[2]);
    const int x3 = clipped((int)((float)i3 / args.scale3), args.x.ne[3]);
    const int n0 = args.x.ne[0], n1 = args.x.ne[1];
    const int first1 = first_at(i1, args.scale1, args.centre, n1), count1 = count_at(i1, args.scale1, args.centre, n1);
    float results[VEC];
    for (int j = 0; j < VEC; j++) {
        const int i = i0 + j < args.dst.ne[0] ? i0 + j : i0;
        const int first0 = first_at(i, args.scale0, args.centre, n0), count0 = count_at(i, args.scale0, args.centre, n0);
        float sum = 0.0f, total = 0.0f;
        for (int t1 = 0; t1 < count1; t1++) {
            GLOBAL const char *row = ROW(x, clipped(first1 + t1, n1), x2, x3);
            const float weight1 = weight_at(i1, t1, args.scale1, args.centre, n1);
            for (int t0 = 0; t0 < count0; t0++) {
                const float weight = weight1 * weight_at(i, t0, args.scale0, args.centre, n0);
                sum = FMA(weight, LOAD(f32)(row, args.x.nb[0], clipped(first0 + t0, n0)), sum);
                total += weight;
            }
        }
        results[j] = METHOD == 3 && total > 0.0f ? sum / total : sum;
    }
    const vec v = VEC_GET(results);
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, args.dst.ne[0], &v);
}
#endif

#ifdef WINDOWS_APART
/* dst[:, i, j, window] = x[:, column, line], or 0 beyond the ends of x */
KERNEL void windows_apart(PARAMETERS)
{
    UNIT_OF(dst);
    const int column = i3 % args.across * args.w + i1, line = i3 / args.across * args.w + i2;
    vec v = VEC_OF(0.0f);
    if (column < args.x.ne[1] && line < args.x.ne[2])
        v = FETCH(f32)(ROW(x, column, line, 0), args.x.nb[0], i0, args.dst.ne[0], 0.0f);
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, args.dst.ne[0], &v);
}
#endif

#ifdef WINDOWS_TOGETHER
/* dst[:, column, line] = x[:, i, j, window] */
KERNEL void windows_together(PARAMETERS)
{
    UNIT_OF(dst);
    const int window = i2 / args.w * args.across + i1 / args.w;
    const vec v = FETCH(f32)(ROW(x, i1 % args.w, i2 % args.w, window), args.x.nb[0], i0, args.dst.ne[0], 0.0f);
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, args.dst.ne[0], &v);
}
#endif

#ifdef RELATIVE_POSITIONS
/* dst[:, i, j] = x[:, n - 1 - i + j] */
KERNEL void relative_positions(PARAMETERS)
{
    UNIT_OF(dst);
    const vec v = FETCH(TX)(ROW(x, args.dst.ne[1] - 1 - i1 + i2, 0, 0), args.x.nb[0], i0, args.dst.ne[0], 0.0f);
    STORE(f16)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, args.dst.ne[0], &v);
}
#endif

#ifdef ADD_POSITIONS
/* dst[i, j, row] = a[i, j, row] + pw[i, row] + ph[j, row] */
KERNEL void add_positions(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.dst.ne[0];
    const vec v = FETCH(f32)(ROW(a, i1, i2, i3), args.a.nb[0], i0, n, 0.0f)
        + FETCH(f32)(ROW(pw, i2, i3, 0), args.pw.nb[0], i0, n, 0.0f)
        + VEC_OF(LOAD(f32)(ROW(ph, i2, i3, 0), args.ph.nb[0], i1));
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &v);
}
#endif
