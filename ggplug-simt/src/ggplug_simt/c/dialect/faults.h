/* Indices out of range, for kernels with a tensor `ids` of ID_TYPE and the operand `faults`.

   For such an index kernels read zeros, or do not store a row, and the stream raises an error when it is synchronised.
   Kernels run one after the other, so the record keeps the first node with such an index; the work-item that claims the
   record searches the first of that node's indices, so that the error is always the same. */

typedef struct {
    int32_t plan;  /* number of the plan; 0 while there is no fault */
    int32_t node;  /* position of the node in the plan's graph */
    int64_t id;    /* the index */
    int64_t number; /* how many of the node's indices precede it */
} fault_record;

#define ID(i, j, k) id_at(ids_data, args.ids, i, j, k)
#define OUTSIDE(id, limit) ((id) < 0 || (id) >= (limit))
#define NOTE_FAULT(limit) note_fault(faults_data, args.plan, args.node, ids_data, args.ids, limit)

INLINE int64_t id_at(GLOBAL const char *data, const tensor ids, int i, int j, int k)
{
    return *(GLOBAL const ID_TYPE *)(data + ids.offset + i * ids.nb[0] + j * ids.nb[1] + k * ids.nb[2]);
}

INLINE void note_fault(
    GLOBAL char *faults, int plan, int node, GLOBAL const char *data, const tensor ids, int64_t limit)
{
    GLOBAL fault_record *record = (GLOBAL fault_record *)faults;
    if (!CLAIM(&record->plan, plan)) return;
    record->node = node;
    record->number = -1;
    for (int k = 0; k < ids.ne[2]; k++)
        for (int j = 0; j < ids.ne[1]; j++)
            for (int i = 0; i < ids.ne[0]; i++) {
                record->id = id_at(data, ids, i, j, k);
                record->number++;
                if (OUTSIDE(record->id, limit)) return;
            }
}
