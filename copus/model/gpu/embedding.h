// The embedding of a part of the vocabulary, and its gradient. Sorting makes rows with equal tokens adjacent, so that
// each row of the gradient has one writer at a time and a fixed order, for vocabularies of any size.
//
// Bytes: forward moves 2 n s per row of n elements of s bytes, the minimum. The gradient reads the output gradient once
// (n s per row), and reads and writes its rows once per distinct token (8 n). Where a token's rows continue in the next
// tile, it also writes and reads two partial sums (4 n each).
#pragma once

#include "copus/model/gpu/device_code.h"
#include "copus/model/gpu/kernels.h"

namespace copus::gpu {

inline constexpr int embedding_threads = 256;

// Looks up embeddings. One block per row.
template <class S, int V>
COPUS_KERNEL(embedding_threads)
embedding_part_kernel(const EmbeddingPart a) {
  const int64_t index = a.tokens[block_index()] - a.first_token;
  const bool here = index >= 0 && index < a.vocab;
  const S* const from = static_cast<const S*>(a.table) + (here ? index : 0) * a.width;
  S* const out = static_cast<S*>(a.out) + block_index() * a.width;
  for (int64_t i = thread_index() * V; i < a.width; i += block_threads() * V) {
    Pack<S, V> pack = load<V>(from + i);
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) pack.values[v] = here ? pack.values[v] : round_to<S>(0);
    store(out + i, pack);
  }
}

// Returns a row's sort key: the token's index in the part, then the row's number, so that all keys differ. Tokens
// outside of the part come last.
inline constexpr int key_row_bits = 32;
COPUS_DEVICE int64_t row_key(const EmbeddingGradient& a, int64_t row) {
  const int64_t index = a.tokens[row] - a.first_token;
  return ((index >= 0 && index < a.vocab ? index : a.vocab) << key_row_bits) | row;
}
COPUS_DEVICE int64_t key_token(int64_t key) { return key >> key_row_bits; }
COPUS_DEVICE int64_t key_row(int64_t key) { return key & 0xFFFFFFFF; }

// Sorts tiles of keys, one block per tile, by Batcher's bitonic network (1968).
static COPUS_KERNEL(embedding_sort_tile / 2) sort_embedding_tiles_kernel(const EmbeddingGradient a) {
  constexpr int tile = embedding_sort_tile;
  COPUS_SHARED(int64_t, keys, tile);
  const int64_t first = block_index() * tile;
  for (int i = thread_index(); i < tile; i += block_threads()) {
    keys[i] = first + i < a.rows ? row_key(a, first + i) : INT64_MAX;
  }
  for (int length = 2; length <= tile; length *= 2) {
    for (int distance = length / 2; distance > 0; distance /= 2) {
      synchronize_block();
      const int low = thread_index() / distance * 2 * distance + thread_index() % distance, high = low + distance;
      const bool ascending = (low & length) == 0;
      const int64_t x = keys[low], y = keys[high];
      if ((x > y) == ascending) {
        keys[low] = y;
        keys[high] = x;
      }
    }
  }
  synchronize_block();
  for (int i = thread_index(); i < tile; i += block_threads()) {
    if (first + i < a.rows) a.tile_keys[first + i] = keys[i];
  }
}

inline constexpr int merge_lanes = 8;  // threads that search together for one key's place

// Puts each key at its final index, the number of smaller keys in all tiles.
static COPUS_KERNEL(embedding_threads) merge_embedding_tiles_kernel(const EmbeddingGradient a) {
  const int64_t i = (block_index() * block_threads() + thread_index()) / merge_lanes;
  const int lane = thread_index() % merge_lanes;
  const int64_t key = i < a.rows ? a.tile_keys[i] : 0;
  int place = 0;
  for (int64_t begin = lane * embedding_sort_tile; begin < a.rows; begin += merge_lanes * embedding_sort_tile) {
    const int64_t* const tile = a.tile_keys + begin;
    int low = 0, high = static_cast<int>(a.rows - begin < embedding_sort_tile ? a.rows - begin : embedding_sort_tile);
    while (low < high) {
      const int middle = (low + high) / 2;
      if (tile[middle] < key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    place += low;
  }
  for (int bits = merge_lanes / 2; bits > 0; bits /= 2) place += shuffle_xor(place, bits);
  if (lane == 0 && i < a.rows) a.sorted_keys[place] = key;
}

COPUS_DEVICE int64_t embedding_tiles(const EmbeddingGradient& a) {
  return (a.rows + embedding_tile - 1) / embedding_tile;
}

// Where a tile writes its sum for a token whose rows span several tiles. first_sum: the token's rows began in an
// earlier tile and end in this tile. last_sum: the token's rows continue in the next tile.
COPUS_DEVICE float* first_sum(const EmbeddingGradient& a, int64_t tile) { return a.partial_sums + tile * a.width; }
COPUS_DEVICE float* last_sum(const EmbeddingGradient& a, int64_t tile) {
  return a.partial_sums + (embedding_tiles(a) + tile) * a.width;
}

// Each block sums some columns of a tile of sorted rows. Columns are along y.
template <class S, int V>
COPUS_KERNEL(embedding_threads)
sum_embedding_tiles_kernel(const EmbeddingGradient a) {
  COPUS_SHARED(int64_t, keys, embedding_tile + 2);  // with one key of each neighbouring tile; -1 beyond the ends
  const int64_t tile = block_index(), first = tile * embedding_tile;
  const int count = static_cast<int>(a.rows - first < embedding_tile ? a.rows - first : embedding_tile);
  if (thread_index() < count + 2) {
    const int64_t i = first + thread_index() - 1;
    keys[thread_index()] = i >= 0 && i < a.rows ? a.sorted_keys[i] : -1;
  }
  synchronize_block();
  const int64_t column = (block_index_y() * block_threads() + thread_index()) * V;
  if (column >= a.width) return;
  const S* const output_gradient = static_cast<const S*>(a.output_gradient) + column;
  const int64_t before = key_token(keys[0]), after = key_token(keys[count + 1]);

  float sums[V];
  COPUS_UNROLL
  for (int v = 0; v < V; ++v) sums[v] = 0;
  const auto put = [&](float* to, bool add) {
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) {
      to[column + v] = add ? to[column + v] + sums[v] : sums[v];
      sums[v] = 0;
    }
  };
  bool since_before = true;  // whether the current sum began with the tile
  constexpr int ahead = 4;
  for (int begin = 0; begin < count; begin += ahead) {
    Pack<S, V> rows[ahead];
    COPUS_UNROLL
    for (int i = 0; i < ahead; ++i) {
      if (begin + i < count) rows[i] = load<V>(output_gradient + key_row(keys[begin + i + 1]) * a.width);
    }
    COPUS_UNROLL
    for (int i = 0; i < ahead; ++i) {
      if (begin + i >= count) continue;
      const int64_t token = key_token(keys[begin + i + 1]);
      if (token == a.vocab) return;  // this row and all later ones are outside of the part
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) sums[v] += widen(rows[i].values[v]);
      const bool last = begin + i + 1 == count;
      if (!last && key_token(keys[begin + i + 2]) == token) continue;
      if (last && after == token) {
        put(last_sum(a, tile), false);
      } else if (since_before && before == token) {
        put(first_sum(a, tile), false);
      } else {
        put(a.gradient + token * a.width, true);
      }
      since_before = false;
    }
  }
}

// Adds up sums of tokens that span tiles. The block of the tile in which a token begins adds up the token's sums.
static COPUS_KERNEL(embedding_threads) join_embedding_tiles_kernel(const EmbeddingGradient a) {
  const int64_t tile = block_index(), tiles = embedding_tiles(a);
  const auto token_at = [&a](int64_t i) { return i >= 0 && i < a.rows ? key_token(a.sorted_keys[i]) : -1; };
  const int64_t begin = tile * embedding_tile, end = begin + embedding_tile;
  const int64_t token = token_at(end - 1);
  const bool goes_on = token >= 0 && token < a.vocab && token_at(end) == token;
  const bool began_before = token_at(begin) == token && token_at(begin - 1) == token;
  if (!goes_on || began_before) return;
  int64_t last = tile + 1;
  while (last + 1 < tiles && token_at((last + 1) * embedding_tile) == token) ++last;
  for (int64_t column = thread_index(); column < a.width; column += block_threads()) {
    float sum = 0;
    for (int64_t i = tile; i < last; ++i) sum += last_sum(a, i)[column];
    a.gradient[token * a.width + column] += sum + first_sum(a, last)[column];
  }
}

}  // namespace copus::gpu
