// The plain C interface of the kernels: pointers, sizes and nothing of torch, so that one build serves every torch.
#pragma once
#include <cstdint>

#if defined(_WIN32)
#define MP_EXPORT extern "C" __declspec(dllexport)
#else
#define MP_EXPORT extern "C" __attribute__((visibility("default")))
#endif

enum mp_dtype : int32_t { MP_F32 = 0, MP_BF16 = 1, MP_F16 = 2 };
enum mp_isa : int32_t { MP_BASELINE = 0, MP_AVX2 = 1, MP_AVX512 = 2, MP_AVX512BF16 = 3 };

// Rows of (batch, kv head): element strides, the last axis contiguous.
struct mp_rows {
  const void* data;
  int64_t stride_batch, stride_head, stride_row;
};

struct mp_hash_args {
  int32_t isa, threads, dtype, key_bits, tables, head_dim;
  int64_t count;         // rows
  int64_t stride_row;    // in elements
  const void* rows;
  const float* mean;     // [head_dim] subtracted from each row, or null
  const float* panels;   // [panels][head_dim][64], see hash.h
  float plane_norm;      // largest norm of a plane
  uint16_t* codes;       // [tables][count]
  float* norms;          // [count] norms of the centred rows, or null
};

struct mp_table_args {
  int32_t threads, key_bits, tables;
  int64_t count;           // keys of the segment, at most 65535
  const uint16_t* codes;   // [tables][count]
  const uint8_t* skip;     // [count] keys left out, or null
  uint16_t* offsets;       // [tables][2^key_bits + 1]
  uint16_t* ids;           // [tables][count]
};

struct mp_segment {
  const uint16_t* ids;      // [batch * kv_heads][tables][size]
  const uint16_t* offsets;  // [batch * kv_heads][tables][2^key_bits + 1]
  int64_t start;            // position of its first key
  int64_t size;             // keys when it was built
  int64_t limit;            // keys still alive: those after a crop are ignored
};

// Fields of the statistics of a head, in the order of mp_attend_args.stats.
enum mp_stat { MP_SELECTED, MP_VISITED, MP_MAX_SHARE, MP_ESS, MP_ERROR, MP_LSE_SAMPLED, MP_NUM_STATS };

struct mp_attend_args {
  int32_t isa, threads, dtype, batch, kv_heads, group, head_dim, key_bits, tables, min_hits, num_segments, with_error;
  int32_t panel_heads;         // 1: planes shared by the kv heads; kv_heads: one set for each
  float scale, weight_eps, plane_norm;
  const float* query;          // [batch][kv_heads * group][head_dim]
  mp_rows keys, values;
  const float* norms;          // [batch * kv_heads][norm_stride], by position
  int64_t norm_stride;
  const float* mean;           // [batch * kv_heads][head_dim]
  const float* panels;         // [panel_heads][panels][head_dim][64]
  const mp_segment* segments;  // [num_segments]
  const int64_t* first;        // [batch] position of the first key that is not padding
  int64_t sink, tail, length;  // dense: [first, first + sink) below tail, and [tail, length)
  const int32_t* heavy;        // [batch * kv_heads][num_heavy] further dense positions below tail, -1 for none
  int64_t num_heavy;
  uint16_t* codes;             // [panel_heads][tables][rows of that set] workspace for the query codes
  float* partial;              // workspace, mp_partial_floats(head_dim) for each head and part
  float* out;                  // [batch][heads][head_dim]
  float* lse;                  // [batch][heads]
  float* stats;                // [batch][heads][MP_NUM_STATS]
};

struct mp_select_args {
  mp_attend_args attend;  // only what the selection needs is read
  int32_t* positions;     // [batch * heads][capacity]
  int64_t capacity;
  int64_t* counts;        // [batch * heads]
};

struct mp_dense_args {
  int32_t isa, threads, dtype, batch, kv_heads, group, head_dim;
  float scale;
  const float* query;       // [batch][kv_heads * group][head_dim]
  mp_rows keys, values;
  int64_t length;
  const int64_t* first;     // [batch]
  const uint8_t* mask;      // [batch][length], 0 hides a key; or null
  const uint8_t* active;    // [batch * heads], heads to compute; or null for all
  int64_t chunk, num_chunks;
  float* partial;           // workspace, mp_partial_floats(head_dim) for each head and chunk
  float* out;
  float* lse;
};
