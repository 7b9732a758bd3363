// What each instruction set provides, and the buffers a thread lends it.
#pragma once
#include "abi.h"

struct mp_scratch {
  float* rows;        // rows being hashed
  float* bounds;      // and the rounding bound of each
  uint8_t* counters;  // 65536 + 64, all zero between calls
  int32_t* selected;  // 65536 + 64
  uint16_t* rounded;  // queries in bfloat16, 4 heads of up to `head_dim` values
};

struct mp_kernels {
  void (*hash)(const mp_hash_args&, int64_t begin, int64_t end, mp_scratch&);
  void (*attend)(const mp_attend_args&, int64_t task, mp_scratch&);
  void (*attend_merge)(const mp_attend_args&, int64_t row);
  void (*select)(const mp_select_args&, int64_t row, mp_scratch&);
  void (*dense)(const mp_dense_args&, int64_t task, mp_scratch&);
  void (*dense_merge)(const mp_dense_args&, int64_t row);
};
