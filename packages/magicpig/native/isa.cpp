// The kernels for one instruction set. Compiled once for each, with MP_NS naming it; nothing here may come from the
// C++ library, whose inline functions the linker would share with the other builds.
#include "attend.h"
#include "dispatch.h"
#include "hash.h"

namespace MP_NS {

static void hash_task(const mp_hash_args& a, int64_t begin, int64_t end, mp_scratch& s) {
  hash_rows(a, begin, end, s.rows, s.bounds);
}

template <class T>
static void dense_part(const mp_attend_args& a, int64_t batch, int64_t kv_head, mp_scratch& s) {
  typedef typename T::type E;
  const int64_t group = batch * a.kv_heads + kv_head, parts_each = a.num_segments + 1;
  const E* keys = (const E*)a.keys.data + batch * a.keys.stride_batch + kv_head * a.keys.stride_head;
  const E* values = (const E*)a.values.data + batch * a.values.stride_batch + kv_head * a.values.stride_head;
  const int64_t first = a.first[batch] < a.length ? a.first[batch] : a.length;
  int64_t sink_end = first + a.sink < a.tail ? first + a.sink : a.tail;
  if (sink_end < first) sink_end = first;
  const int64_t tail = a.tail > first ? a.tail : first;
  for (int h = 0; h < a.group; h += MAX_GROUP) {
    const int heads = a.group - h < MAX_GROUP ? a.group - h : MAX_GROUP;
    Part parts[MAX_GROUP];
    for (int g = 0; g < heads; ++g) parts[g] = empty_part(a.partial, a.head_dim, (group * a.group + h + g) * parts_each);
    const float* query = a.query + (group * a.group + h) * a.head_dim;
    int64_t at = first;
    int64_t heavy = 0;
    auto next = [&](int64_t* position) {
      int n = 0;
      while (n < BLOCK) {
        if (at >= sink_end && at < tail) {
          while (heavy < a.num_heavy && n < BLOCK) {
            const int32_t p = a.heavy[group * a.num_heavy + heavy++];
            if (p >= sink_end && p < tail) position[n++] = p;
          }
          if (n == BLOCK) break;
          at = tail;
        }
        if (at >= a.length) break;
        position[n++] = at++;
      }
      return n;
    };
    dense_positions<T>(keys, a.keys.stride_row, values, a.values.stride_row, query, a.head_dim, heads, a.head_dim,
                       a.scale, nullptr, s.rounded, parts, next);
    for (int g = 0; g < heads; ++g) write_part(a.partial, a.head_dim, (group * a.group + h + g) * parts_each, parts[g]);
  }
}

static const uint16_t* query_codes(const mp_attend_args& a, int64_t batch, int64_t head, int64_t* stride) {
  const int64_t heads = (int64_t)a.kv_heads * a.group;
  if (a.panel_heads == 1) {
    *stride = a.batch * heads;
    return a.codes + batch * heads + head;
  }
  const int64_t kv_head = head / a.group;
  *stride = (int64_t)a.batch * a.group;
  return a.codes + kv_head * a.tables * *stride + batch * a.group + head % a.group;
}

template <class T>
static void sampled_part(const mp_attend_args& a, int64_t batch, int64_t head, int64_t segment, mp_scratch& s) {
  const int64_t kv_head = head / a.group, heads = (int64_t)a.kv_heads * a.group, row = batch * heads + head;
  const int64_t index = row * (a.num_segments + 1) + 1 + segment;
  Part part = empty_part(a.partial, a.head_dim, index);
  int64_t stride;
  const uint16_t* codes = query_codes(a, batch, head, &stride);
  const int64_t count = collect(a.segments[segment], batch * a.kv_heads + kv_head, a.key_bits, a.tables, a.min_hits,
                                codes, stride, s.counters, s.selected, &part.visited);
  part.selected = (float)count;
  const Law law = make_law(a.key_bits, a.tables, a.min_hits);
  attend_segment<T>(a, a.segments[segment], batch, kv_head, a.query + row * a.head_dim, law, s.selected, count,
                    s.rounded, part);
  write_part(a.partial, a.head_dim, index, part);
}

// Task order: the dense parts, which are the longest, then each head's segments, heads of a group side by side.
static void attend_task(const mp_attend_args& a, int64_t task, mp_scratch& s) {
  const int64_t groups = (int64_t)a.batch * a.kv_heads;
  if (task < groups) {
    switch (a.dtype) {
      case MP_BF16: return dense_part<BF16>(a, task / a.kv_heads, task % a.kv_heads, s);
      case MP_F16: return dense_part<F16>(a, task / a.kv_heads, task % a.kv_heads, s);
      default: return dense_part<F32>(a, task / a.kv_heads, task % a.kv_heads, s);
    }
  }
  task -= groups;
  const int64_t heads = (int64_t)a.kv_heads * a.group, segment = task % a.num_segments;
  const int64_t row = task / a.num_segments, batch = row / heads, head = row % heads;
  switch (a.dtype) {
    case MP_BF16: return sampled_part<BF16>(a, batch, head, segment, s);
    case MP_F16: return sampled_part<F16>(a, batch, head, segment, s);
    default: return sampled_part<F32>(a, batch, head, segment, s);
  }
}

static void attend_merge(const mp_attend_args& a, int64_t row) {
  const int64_t parts = a.num_segments + 1;
  merge(a.partial, a.head_dim, row * parts, parts, 0, a.out + row * a.head_dim, a.lse + row,
        a.stats + row * MP_NUM_STATS);
}

static void select_task(const mp_select_args& a, int64_t row, mp_scratch& s) {
  const mp_attend_args& b = a.attend;
  const int64_t heads = (int64_t)b.kv_heads * b.group, batch = row / heads, head = row % heads;
  int64_t stride, total = 0;
  const uint16_t* codes = query_codes(b, batch, head, &stride);
  for (int segment = 0; segment < b.num_segments; ++segment) {
    float visited;
    const int64_t count = collect(b.segments[segment], batch * b.kv_heads + head / b.group, b.key_bits, b.tables,
                                  b.min_hits, codes, stride, s.counters, s.selected, &visited);
    for (int64_t i = 0; i < count && total < a.capacity; ++i)
      a.positions[row * a.capacity + total++] = (int32_t)(b.segments[segment].start + s.selected[i]);
  }
  a.counts[row] = total;
}

template <class T>
static void dense_chunk(const mp_dense_args& a, int64_t batch, int64_t kv_head, int64_t chunk, mp_scratch& s) {
  typedef typename T::type E;
  const int64_t group = batch * a.kv_heads + kv_head;
  const E* keys = (const E*)a.keys.data + batch * a.keys.stride_batch + kv_head * a.keys.stride_head;
  const E* values = (const E*)a.values.data + batch * a.values.stride_batch + kv_head * a.values.stride_head;
  int64_t begin = chunk * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
  if (begin < a.first[batch]) begin = a.first[batch];
  const uint8_t* mask = a.mask ? a.mask + batch * a.length : nullptr;
  for (int h = 0; h < a.group; h += MAX_GROUP) {
    const int heads = a.group - h < MAX_GROUP ? a.group - h : MAX_GROUP;
    const int64_t row = group * a.group + h;
    bool wanted = !a.active;
    for (int g = 0; g < heads && !wanted; ++g) wanted = a.active[row + g];
    if (!wanted) continue;
    Part parts[MAX_GROUP];
    for (int g = 0; g < heads; ++g) parts[g] = empty_part(a.partial, a.head_dim, (row + g) * a.num_chunks + chunk);
    int64_t at = begin;
    auto next = [&](int64_t* position) {
      int n = 0;
      for (; n < BLOCK && at < end; ++n) position[n] = at++;
      return n;
    };
    dense_positions<T>(keys, a.keys.stride_row, values, a.values.stride_row, a.query + row * a.head_dim, a.head_dim,
                       heads, a.head_dim, a.scale, mask, s.rounded, parts, next);
    for (int g = 0; g < heads; ++g) write_part(a.partial, a.head_dim, (row + g) * a.num_chunks + chunk, parts[g]);
  }
}

static void dense_task(const mp_dense_args& a, int64_t task, mp_scratch& s) {
  const int64_t group = task / a.num_chunks, chunk = task % a.num_chunks;
  switch (a.dtype) {
    case MP_BF16: return dense_chunk<BF16>(a, group / a.kv_heads, group % a.kv_heads, chunk, s);
    case MP_F16: return dense_chunk<F16>(a, group / a.kv_heads, group % a.kv_heads, chunk, s);
    default: return dense_chunk<F32>(a, group / a.kv_heads, group % a.kv_heads, chunk, s);
  }
}

static void dense_merge(const mp_dense_args& a, int64_t row) {
  if (a.active && !a.active[row]) return;
  merge(a.partial, a.head_dim, row * a.num_chunks, a.num_chunks, -1, a.out + row * a.head_dim, a.lse + row, nullptr);
}

extern const mp_kernels kernels;
const mp_kernels kernels = {hash_task, attend_task, attend_merge, select_task, dense_task, dense_merge};

}  // namespace MP_NS
