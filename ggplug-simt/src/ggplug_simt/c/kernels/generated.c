/* Values computed from positions: ranges, embeddings of time steps. */
#define UNIT VEC

#ifdef ARANGE
/* start, start + step, ... */
KERNEL void arange(PARAMETERS)
{
    UNIT_OF(dst);
    float values[VEC];
    for (int j = 0; j < VEC; j++) values[j] = FMA((float)(i0 + j), args.step, args.start);
    const vec v = VEC_GET(values);
    STORE(f32)(ROW(dst, i1, i2, i3), 4, i0, args.dst.ne[0], &v);
}
#endif

#ifdef TIMESTEP_EMBEDDING
/* cos(x f), then sin(x f), for `half_of` frequencies f */
KERNEL void timestep_embedding(PARAMETERS)
{
    UNIT_OF(dst);
    const float time = LOAD(f32)(ROW(x, 0, 0, 0), args.x.nb[0], i1);
    float values[VEC];
    for (int j = 0; j < VEC; j++) {
        const int i = i0 + j, k = i < args.half_of ? i : i - args.half_of;
        const float angle = time * exp(args.slope * (float)k);
        values[j] = i >= 2 * args.half_of ? 0.0f : i < args.half_of ? cos(angle) : sin(angle);
    }
    const vec v = VEC_GET(values);
    STORE(f32)(ROW(dst, i1, i2, i3), 4, i0, args.dst.ne[0], &v);
}
#endif
